"""The rows of a prediction until they are joined: chunks of its images, in a folder next to its file.

Each worker appends the chunks that it computes to a file of its own, one JSON line each. The same command continues
with the chunks that are there; a line that was cut short is computed again.
"""

import contextlib
import json
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from lockstep.data.images.decode import ImageError
from lockstep.runs import files
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import shown

INPUTS = "inputs.json"  # what the rows depend on
FILES = "*.jsonl"
PICTURES = "pictures"  # folder of the pictures of its images

Index = dict[int, tuple[Path, int]]  # file and offset of each chunk


class Chunk(NamedTuple):
    """Rows of a part of the images as CSV, and an error for each image that cannot be read."""

    number: int
    rows: str
    errors: list[str]


def open_folder(path: Path, inputs: Mapping[str, str], held: contextlib.ExitStack) -> Index:
    """Create or continue the folder, and lock it while `held` is open. Returns its `index`.

    Chunks of other `inputs` are removed. At the end a folder that was joined or is empty is removed, after the lock:
    a network file system keeps open files. Raises ValueError if the folder cannot be used.
    """
    folder = RunFolder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()) and not folder.lock_file.exists():
            raise ValueError(f"{shown(path)} is not of a prediction: remove it, or choose another --output")
        with contextlib.ExitStack() as locked:
            locked.enter_context(folder.lock())
            held.callback(_remove_ended, path)
            held.push(locked.pop_all())
        before = files.read_json(path / INPUTS)
        if changed := [name for name, value in inputs.items() if before.get(name) != value]:
            for old in path.glob(FILES):
                old.unlink()
            shutil.rmtree(path / PICTURES, ignore_errors=True)
            if before:
                print(f"{' and '.join(changed)} changed: the rows in {shown(path)} are computed again", flush=True)
            files.write_json(path / INPUTS, dict(inputs))
    except BlockingIOError as error:
        hint = "wait for it to end, or choose another --output"
        raise ValueError(f"{shown(path)} is being written by another process: {hint}") from error
    except OSError as error:
        raise ValueError(f"{shown(path)} cannot be written ({error.strerror}): choose another --output") from error
    return index(path.glob(FILES))


def _remove_ended(path: Path) -> None:
    if not (path / INPUTS).exists() or not any(file.stat().st_size for file in path.glob(FILES)):
        shutil.rmtree(path, ignore_errors=True)


def pictures_of(output: Path) -> Path:
    """Return the folder of pictures of the images, which are moved with the last row."""
    return Path(f"{output}.part") / PICTURES


def new_file(folder: Path) -> Path:
    return folder / FILES.replace("*", secrets.token_hex(8))


def line_of(chunk: Chunk) -> bytes:
    return f"{json.dumps(chunk)}\n".encode()


def index(paths: Iterable[Path]) -> Index:
    """Find the complete chunks in these files."""
    found: Index = {}
    for path in paths:
        with open(path, "rb", opener=files.no_link) as file:
            offset = 0
            for line in file:
                with contextlib.suppress(ValueError):  # cut short
                    found[json.loads(line)[0]] = path, offset
                offset += len(line)
    return found


def join(folder: Path, found: Index, num_chunks: int, output: Path, *, header: str, is_strict: bool) -> list[str]:
    """Write all rows in order to `output`, in one step, and remove the chunks. Returns the errors of their images.

    Raises ImageError, and writes nothing, if there are no rows, or errors and `is_strict`.
    """
    if missing := [number for number in range(num_chunks) if number not in found]:
        raise RuntimeError(f"{len(missing)} of {num_chunks} chunks of {folder} are missing, such as {missing[0]}.")
    errors: list[str] = []
    has_rows = False
    with contextlib.ExitStack() as held, files.atomic_file(output) as written:
        sources = {path: held.enter_context(open(path, "rb", opener=files.no_link)) for path, _ in found.values()}
        written.write(header.encode())
        for number in range(num_chunks):
            path, offset = found[number]
            sources[path].seek(offset)
            chunk = Chunk(*json.loads(sources[path].readline()))
            written.write(chunk.rows.encode(errors="surrogateescape"))  # a file name need not be UTF-8
            errors += chunk.errors
            has_rows = has_rows or bool(chunk.rows)
        if errors and (is_strict or not has_rows):
            (folder / INPUTS).unlink()
            raise ImageError(errors)
    (folder / INPUTS).unlink()
    return errors

"""The rows of a prediction until they are joined: chunks of its images, in a folder next to its file.

Each worker appends the chunks that it computes to a file of its own, one JSON line each. The same command continues
with the chunks that are there; a damaged line is computed again.
"""

import contextlib
import itertools
import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lockstep.data.splits import ImageError
from lockstep.runs import files, gate
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import display_path

FILES = "*.jsonl"
PICTURES = "pictures"  # folder of the pictures of its images

Index = dict[int, tuple[Path, int]]  # file and offset of each chunk
RowWriter = Callable[[Iterator[str]], None]  # of the rows of each chunk


class Chunk(NamedTuple):
    """Rows of a part of the images as CSV, and an error for each image that cannot be read."""

    number: int
    rows: str
    errors: list[str]


def open_folder(path: Path, inputs: Mapping[str, str], held: contextlib.ExitStack) -> Index:
    """Create or continue the folder, and lock it while `held` is open. Returns its `index`.

    Chunks of other `inputs` are removed. At the end a folder that was joined or is empty is removed, after the lock:
    a network file system keeps open files. Raises ValueError if the folder cannot be used, or was not made here.
    """
    folder = RunFolder(path)
    try:
        path.mkdir(0o755, parents=True, exist_ok=True)
        if files.is_own_folder(path) and not any(path.iterdir()):
            folder.claim(inputs={})
        with contextlib.ExitStack() as locked:
            _need_own(folder)
            locked.enter_context(folder.lock())
            _need_own(folder)  # what nobody changes now
            held.callback(_remove_ended, path)
            held.push(locked.pop_all())
        before = folder.fact("inputs")
        if changed := [name for name, value in inputs.items() if before.get(name) != value]:
            _remove_rows(path)
            shutil.rmtree(path / PICTURES, ignore_errors=True)
            if before:
                what = f"the rows in {display_path(path)} are computed again"
                print(f"{' and '.join(changed)} changed: {what}", flush=True)
            folder.note(inputs=dict(inputs))
    except BlockingIOError as error:
        hint = "wait for it to end, or choose another --output"
        raise ValueError(f"{display_path(path)} is being written by another process: {hint}") from error
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise ValueError(f"{display_path(path)} {problem}: choose another --output") from error
    return index(path.glob(FILES))


def _need_own(folder: RunFolder) -> None:
    """Raise ValueError unless a prediction of this user made the folder, and all that is in it."""
    try:
        gate.need_own(folder, "")
        is_ours = folder.fact("inputs") is not None
    except PermissionError:
        is_ours = False
    if not is_ours:
        what = f"{display_path(folder.path)} is not a folder of this prediction"
        raise ValueError(f"{what}: remove it, or choose another --output")


def _remove_rows(path: Path) -> None:
    for rows in path.glob(FILES):
        rows.unlink()


def _remove_ended(path: Path) -> None:
    if not any(file.stat().st_size for file in path.glob(FILES)):
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
                with contextlib.suppress(ValueError, TypeError, RecursionError):  # damaged, or cut short
                    found[_chunk(line).number] = path, offset
                offset += len(line)
    return found


def _chunk(line: bytes) -> Chunk:
    """Read a line. Raises ValueError, TypeError or RecursionError for one that is no chunk."""
    chunk = Chunk(*json.loads(line))
    if not (type(chunk.number) is int and isinstance(chunk.errors, list)):
        raise TypeError(line)
    for text in (chunk.rows, *chunk.errors):
        str.encode(text, errors="surrogateescape")
    return chunk


def join(folder: Path, found: Index, num_chunks: int, write: RowWriter, *, is_strict: bool) -> list[str]:
    """Let `write` write the rows of all chunks in order, and remove the chunks. Returns the errors of their images.

    Raises ImageError, inside `write`, if there are no rows, or errors and `is_strict`.
    """
    if missing := [number for number in range(num_chunks) if number not in found]:
        raise RuntimeError(f"{len(missing)} of {num_chunks} chunks of {folder} are missing, such as {missing[0]}.")
    errors: list[str] = []

    def rows() -> Iterator[str]:
        has_rows = False
        for number in range(num_chunks):
            path, offset = found[number]
            sources[path].seek(offset)
            chunk = _chunk(sources[path].readline())
            yield chunk.rows
            errors.extend(chunk.errors)
            has_rows = has_rows or bool(chunk.rows)
        if errors and (is_strict or not has_rows):
            _remove_rows(folder)
            raise ImageError(errors)

    with contextlib.ExitStack() as held:
        sources = {path: held.enter_context(open(path, "rb", opener=files.no_link)) for path, _ in found.values()}
        write(rows())
    _remove_rows(folder)
    return errors


def write_table(output: Path, header: str, rows: Iterable[str]) -> None:
    """Write a header and rows to a CSV file, in one step."""
    with files.atomic_file(output) as file:
        for text in itertools.chain([header], rows):
            file.write(text.encode(errors="surrogateescape"))  # a file name need not be UTF-8

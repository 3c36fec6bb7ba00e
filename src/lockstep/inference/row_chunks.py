"""The rows of a prediction until they are joined: each rank appends the chunks that it computes to a hidden file.

The file is next to the output, which may be on a disk of its own. It has a JSON line for each chunk.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lockstep.data.splits import ImageError
from lockstep.runs import files
from lockstep.runs.naming import display_path

Index = tuple[Path, dict[int, int]]  # a file, and the offset of each of its chunks
RowWriter = Callable[[Iterator[str]], None]  # of the rows of each chunk


class Chunk(NamedTuple):
    """Rows of a part of the images as CSV, and an error for each image that cannot be read."""

    number: int
    rows: str
    errors: list[str]


def prepare(output: Path) -> None:
    """Create the folder of `output`, and remove the hidden files of commands that were killed.

    Raises ValueError if another process is writing `output`.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    for hidden in output.parent.glob(".*"):
        is_temporary = files.LEFTOVER.fullmatch(hidden.name) is not None
        if not is_temporary or hidden.name.rsplit(".", 2)[0] != f".{output.name}":
            continue
        is_held = files.is_held(hidden)
        if is_held:
            what = f"{display_path(output)} is being written by another process"
            raise ValueError(f"{what}: wait for it to end, or choose another --output")
        if is_held is False:
            files.remove(hidden)


@contextlib.contextmanager
def hidden_file(output: Path) -> Iterator[Path]:
    """Create and lock a hidden file next to `output`, which is removed at the end."""
    path = output.with_name(files.temporary_name(output))
    try:
        with files.hold_lock(path):
            yield path
    finally:
        files.remove(path)


def write_chunks(path: Path, chunks: Iterable[Chunk]) -> Index:
    """Append chunks to a file."""
    offsets: dict[int, int] = {}
    with open(path, "ab", opener=files.no_link) as file:
        for chunk in chunks:
            offsets[chunk.number] = file.tell()
            file.write(f"{json.dumps(chunk)}\n".encode())
    return path, offsets


def join(found: Sequence[Index], write: RowWriter, *, is_strict: bool) -> list[str]:
    """Let `write` write the rows of all chunks in order. Returns the errors of their images.

    Raises ImageError, inside `write`, if there are no rows, or errors and `is_strict`.
    """
    errors: list[str] = []
    places = {number: (path, offset) for path, offsets in found for number, offset in offsets.items()}

    def rows() -> Iterator[str]:
        has_rows = False
        for number in range(len(places)):
            path, offset = places[number]
            sources[path].seek(offset)
            chunk = Chunk(*json.loads(sources[path].readline()))
            yield chunk.rows
            errors.extend(chunk.errors)
            has_rows = has_rows or bool(chunk.rows)
        if errors and (is_strict or not has_rows):
            raise ImageError(errors)

    with contextlib.ExitStack() as held:
        sources = {path: held.enter_context(open(path, "rb", opener=files.no_link)) for path, _ in found}
        write(rows())
    return errors


def write_table(output: Path, header: str, rows: Iterable[str]) -> None:
    """Write a header and rows to a CSV file, in one step."""
    with files.atomic_file(output) as file:
        for text in itertools.chain([header], rows):
            file.write(text.encode(errors="surrogateescape"))  # a file name need not be UTF-8

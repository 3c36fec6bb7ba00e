"""What a copy of files says of itself: the record of a complete one, the journal of one that is being made."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

RECORD, JOURNAL = ".copied", ".journal"
State = tuple[int, int, int]  # size in bytes or -1, and two numbers that change with the content


class Note(NamedTuple):
    """What a complete copy says of itself: what it is of, in which state, and a code of the names of its files."""

    source: str
    digest: str
    names: str


class CopiedFile(NamedTuple):
    """A file of a copy: its own size and time of change, and the state of the source it is of."""

    size: int
    time_ns: int
    state: State


def read_note(place: Path) -> Note | None:
    """What a complete copy says of itself; None where there is none."""
    try:
        with open(place / RECORD, "rb") as file:
            values: Any = json.loads(file.readline(1 << 16))
        return Note(**values)
    except (OSError, ValueError, TypeError):
        return None


def read_files(place: Path) -> dict[str, CopiedFile]:
    """The files of the copy by name, whole or not."""
    for name in (RECORD, JOURNAL):
        try:
            content = (place / name).read_bytes()
        except FileNotFoundError:
            continue
        if name == RECORD:
            content = content.partition(b"\n")[2]
        copied = {}
        for line in content.split(b"\0")[:-1]:  # a last one that is not ended was cut
            *numbers, file_name = line.split(b" ", 5)
            try:
                size, time_ns, one, two, three = map(int, numbers)
            except ValueError:  # zeros, or half a line: what a power cut leaves
                continue
            copied[os.fsdecode(file_name)] = CopiedFile(size, time_ns, (one, two, three))
        return copied
    return {}


def line(name: str, copied: CopiedFile) -> bytes:
    """A file in the record or journal."""
    numbers = " ".join(map(str, (copied.size, copied.time_ns, *copied.state)))
    return os.fsencode(f"{numbers} {name}\0")


def scan(folder: Path, prefix: str = "") -> Iterator[tuple[str, tuple[int, int]]]:
    """(name, (size, time of change)) of everything below a folder that is no folder."""
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from scan(Path(entry.path), f"{prefix}{entry.name}/")
            else:
                state = entry.stat(follow_symlinks=False)
                yield prefix + entry.name, (state.st_size, state.st_mtime_ns)


def remove_empty(folder: Path) -> None:
    """Remove the folders below that hold nothing: a class of the source no longer."""
    for path, _, _ in os.walk(folder, topdown=False):
        if Path(path) != folder and not os.listdir(path):
            os.rmdir(path)

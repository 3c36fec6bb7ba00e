"""Atomic files, locks, JSON and CSV. Readers follow no links and wait for no pipes."""

import contextlib
import csv
import errno
import fcntl
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

LEFTOVER = re.compile(r"\..+\.\d+\.[0-9a-f]{8}")  # temporary names of `atomic_file`
# text that a spreadsheet would run as a formula (OWASP, "CSV injection"), quoted or not; no number matches
FORMULA = re.compile(r"'*(?!-?(\d[\d.]*(e[-+]?\d+)?|inf|nan)$)[=+\-@\t\r]", re.IGNORECASE)
PRIVATE = ("config.yaml", "settings.yaml", "job.json", "sweep.json")  # may contain secrets, which a resume needs


@contextlib.contextmanager
def parent_of(path: Path) -> Iterator[int]:
    """Open the folder of a file as a descriptor, so that no link can take its place. Raises OSError for a link."""
    number = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield number
    finally:
        os.close(number)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that replaces `path` in one step when the block succeeds, and is removed when it fails.

    A reader gets the old content or the new one, also after a power cut. The folder of `path` must be no link.
    """
    temporary = f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    mode = 0o600 if path.name in PRIVATE else 0o644
    try:
        with parent_of(path) as folder:
            try:
                number = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder)
                with open(number, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
            with contextlib.suppress(OSError):  # makes the rename durable, on file systems that support it
                os.fsync(folder)
    except OSError as error:
        if error.filename in (None, temporary):  # a full disk does not name the file
            error.filename, error.filename2 = str(path), None
        raise


def remove(path: Path) -> None:
    """Remove a file or a link, if it is there. Raises OSError if its folder is a link."""
    with contextlib.suppress(FileNotFoundError), parent_of(path) as folder:
        os.unlink(path.name, dir_fd=folder)


def open_to_append(path: Path) -> BinaryIO:
    """Open a file to append to it. Raises OSError for links, hard links, and everything but a file."""
    with parent_of(path) as folder:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = open(os.open(path.name, flags, 0o644, dir_fd=folder), "r+b")  # noqa: SIM115
    state = os.fstat(file.fileno())
    if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
        file.close()
        raise OSError(errno.EPERM, "is a hard link, or no file: remove it", str(path))
    return file


def move(folder: Path, path: Path) -> None:
    """Move a folder to `path`, where an empty one may be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.rmdir()
    shutil.move(folder, path)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is created if necessary. Raises BlockingIOError if another process holds it."""
    with open(path, "ab", opener=no_link) as file:
        # only users who can write the file may take its lock: reading is enough for flock
        writers = os.fstat(file.fileno()).st_mode & 0o222
        with contextlib.suppress(PermissionError):  # the file of another user
            os.fchmod(file.fileno(), writers | writers << 1)
        for _ in range(19):  # `is_held` in another process takes the lock for an instant
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.05)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def is_held(path: Path) -> bool | None:
    """Check whether a live process on this machine holds the lock of a file; None if this user may not open it."""
    try:
        with open(path, "rb", opener=no_link) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except PermissionError:
        return None
    except BlockingIOError:
        return True
    return False


def remove_leftovers(path: Path, *, is_deep: bool = True) -> None:
    """Remove temporary files of killed writers; `is_deep`: also in subfolders. Hold the lock of the folder."""
    for leftover in path.rglob(".*") if is_deep else path.glob(".*"):
        if LEFTOVER.fullmatch(leftover.name):
            remove(leftover)


def write_atomically(path: Path, text: str) -> None:
    with atomic_file(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: dict[str, Any]) -> None:
    write_atomically(path, to_json(value) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is no file. Raises ValueError, which names the file, for anything else."""
    try:
        value = json.loads(read_text(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not contain a JSON object.")
    return value


def read_text(path: Path) -> str:
    """Read UTF-8 text. Raises ValueError for other bytes, OSError for a link."""
    with open(path, "rb", opener=no_link) as file:
        return file.read().decode()


def read_lines(path: Path) -> list[str]:
    """Read the lines of a file; none if there is no file."""
    try:
        return read_text(path).splitlines()
    except FileNotFoundError:
        return []


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file by column, without an incomplete last line; none if there is no file."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        return []
    return list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Format rows as CSV; text that a spreadsheet would run as a formula gets a `'` in front."""
    safe = ([f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) else cell for cell in row] for row in rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(safe)
    return text.getvalue()


def uncell(text: str) -> str:
    """Undo the `'` of `csv_text`."""
    return text[1:] if text[:1] == "'" and FORMULA.match(text) else text


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace a CSV file; its columns are those of all rows, in order of appearance."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def append_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows to a CSV file, which is rewritten if they have a new column."""
    with io.TextIOWrapper(open_to_append(path), newline="") as file:
        file.seek(0)
        columns = next(csv.reader(file), [])
        if all(name in columns for row in rows for name in row):
            csv.DictWriter(file, columns, lineterminator="\n").writerows(rows)
            file.flush()
            os.fsync(file.fileno())
            return
    write_rows(path, [*read_rows(path), *rows])


def is_own_folder(path: Path) -> bool:
    """Check that a folder is of this user and no link: in /tmp, other users can create any name."""
    state = os.stat(path, follow_symlinks=False)
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()


def owner(path: Path) -> str:
    """Return the name of the user who owns a file or folder."""
    try:
        return path.owner()
    except KeyError:  # a user of another machine or of a container
        return f"user {path.stat().st_uid}"


def no_link(path: str, flags: int) -> int:
    """Open a path as an opener for `open` that follows no link and does not wait for the other end of a pipe.

    Only this user may write a new file.
    """
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o644)


def to_json(value: Any) -> str:
    """Format plain values as JSON; numbers that are not finite become null."""

    def finite(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: finite(inner) for key, inner in item.items()}
        if isinstance(item, list):
            return [finite(inner) for inner in item]
        return None if isinstance(item, float) and not math.isfinite(item) else item

    return json.dumps(finite(value), indent=1, allow_nan=False)

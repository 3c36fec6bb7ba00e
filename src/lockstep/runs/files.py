"""Files that are whole or not there: written beside, then renamed; read without following links."""

import contextlib
import csv
import fcntl
import io
import json
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

LEFTOVER = re.compile(r"\..+\.\d+\.[0-9a-f]{8}")  # what `atomic_file` calls a file before it is whole
# how a formula begins (OWASP, "CSV injection"), or one that is marked; not a number
FORMULA = re.compile(r"'*(?!-?(\d[\d.]*(e[-+]?\d+)?|inf|nan)$)[=+\-@\t\r]", re.IGNORECASE)
PRIVATE = ("config.yaml", "job.json", "sweep.json")  # keep secrets that are needed to run again


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file that becomes `path` in one step when the block ends well, and leaves no trace when it does not.

    A reader sees the old content or the new one, also after a power cut.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            if path.name in PRIVATE:
                os.fchmod(file.fileno(), 0o600)
            yield file
            file.flush()
            os.fsync(file.fileno())
        replace(temporary, path)
    except OSError as error:
        if error.filename in (None, str(temporary)):  # a full disk does not say which file
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def replace(temporary: Path, path: Path) -> None:
    """Rename a file so that a power cut does not undo it."""
    os.replace(temporary, path)
    with contextlib.suppress(OSError):  # some file systems cannot, and some folders can be written but not read
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made if need be. Raises BlockingIOError while another process holds it."""
    with open(path, "ab", opener=no_link) as file:
        # whoever opens it can hold its lock: readable by those alone who may write it
        writers = os.fstat(file.fileno()).st_mode & 0o222
        with contextlib.suppress(PermissionError):  # of another user
            os.fchmod(file.fileno(), writers | writers << 1)
        for _ in range(19):  # `is_held` of a reader holds it for an instant
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.05)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def is_held(path: Path) -> bool | None:
    """Whether a live process on this machine holds the lock of a file; None for a file that is closed to this user."""
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
    """Remove what killed writers left, half a checkpoint for example; `is_deep`: also in the folders below.

    Call it where nobody writes, holding the lock of the folder.
    """
    for leftover in path.rglob(".*") if is_deep else path.glob(".*"):
        if LEFTOVER.fullmatch(leftover.name):
            leftover.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step."""
    with atomic_file(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace `path` by plain values."""
    write_atomically(path, to_json(value) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The values of a file, empty where there is none. Raises ValueError, with its name, for what is no JSON object."""
    try:
        value = json.loads(read_text(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not hold a JSON object.")
    return value


def read_text(path: Path) -> str:
    """The text of a file; follows no link and waits for no pipe. Raises ValueError for what is no UTF-8."""
    with open(path, "rb", opener=no_link) as file:
        return file.read().decode()


def read_lines(path: Path) -> list[str]:
    """The lines of a file, none where there is no file."""
    try:
        return read_text(path).splitlines()
    except FileNotFoundError:
        return []


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by column, without half a last line; none where there is no file."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        return []
    return list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """The text of a CSV file with names in it: a `'` marks what a spreadsheet would take for a formula as a text."""
    marked = ([f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) else cell for cell in row] for row in rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(marked)
    return text.getvalue()


def uncell(text: str) -> str:
    """A cell without the mark of `csv_text`."""
    return text[1:] if text[:1] == "'" and FORMULA.match(text) else text


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace a CSV file. It has the columns of all rows, in the order in which they come."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def append_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows to a CSV file, which is replaced where they have a new column."""
    with open(path, "a+", newline="") as file:
        file.seek(0)
        columns = next(csv.reader(file), [])
        if all(name in columns for row in rows for name in row):
            csv.DictWriter(file, columns, lineterminator="\n").writerows(rows)
            file.flush()
            os.fsync(file.fileno())
            return
    write_rows(path, [*read_rows(path), *rows])


def is_own_folder(path: Path) -> bool:
    """True for a folder of this user, no link: in /tmp anybody may have put something under a name they know."""
    state = os.stat(path, follow_symlinks=False)
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()


def owner(path: Path) -> str:
    """The name of the user whom a file or folder belongs to."""
    try:
        return path.owner()
    except KeyError:  # a user of another machine, or of a container
        return f"user {path.stat().st_uid}"


def no_link(path: str, flags: int) -> int:
    """An opener for `open` that follows no link and does not wait for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)


def to_json(value: Any) -> str:
    """JSON of plain values; what is not a finite number becomes null, which every reader knows."""

    def finite(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: finite(inner) for key, inner in item.items()}
        if isinstance(item, list):
            return [finite(inner) for inner in item]
        return None if isinstance(item, float) and not math.isfinite(item) else item

    return json.dumps(finite(value), indent=1, allow_nan=False)

"""Atomic files, locks, JSON and CSV.

Readers accept only regular files of a limited size, because anybody may have written them.
"""

import csv
import errno
import fcntl
import gzip
import io
import itertools
import json
import math
import os
import re
import secrets
import shutil
import stat
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

JsonObject = dict[str, Any]  # with plain values

LEFTOVER = re.compile(r"\..+\.\d+\.[0-9a-f]{8}")  # matches names that `temporary_name` returns
# Matches before text that a spreadsheet would run as a formula (OWASP, "CSV injection"). The text
# may be quoted or not, and the separator may be a semicolon or a tab. No number matches.
FORMULA = re.compile(
    r"(?:^|(?<=[;\t\r\n]))(?!-?(?:\d[\d.]*(?:e[-+]?\d+)?|inf|nan)(?![^;\t\r\n]))(?=['\"]*[=+\-@])",
    re.IGNORECASE,
)
MARKED = re.compile(f"{FORMULA.pattern}'", re.IGNORECASE)
MAX_TEXT_BYTES = 2**26  # maximum size of a text: a metrics.csv of 500,000 epochs
# Maximum unpacked size of images.json.gz. That of ImageNet-21k, with 14 million images, has 0.7 GB.
MAX_UNPACKED_BYTES = 2**30
MAX_DEPTH = 100  # levels of JSON
# These files may contain secrets, which a resume needs.
PRIVATE = ("config.yaml", "settings.yaml", "job.json", "sweep.json")


@contextmanager
def open_parent(path: Path) -> Iterator[int]:
    """Open the folder of a file as a descriptor, so that no link can take its place.

    Raises OSError for a link.
    """
    number = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield number
    finally:
        os.close(number)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that replaces `path` atomically when the block succeeds.

    The file is removed when the block fails. A reader gets the old content or the new one, also
    after a power failure. The folder of `path` must not be a link.
    """
    temporary = temporary_name(path)
    mode = 0o600 if path.name in PRIVATE else 0o644
    try:
        with open_parent(path) as folder:
            try:
                number = os.open(
                    temporary,
                    os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
                    mode,
                    dir_fd=folder,
                )
                with open(number, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
            # This makes the rename durable, on file systems that support it.
            with suppress(OSError):
                os.fsync(folder)
    except OSError as error:
        if error.filename in (None, temporary):  # The error of a full disk does not name the file.
            error.filename, error.filename2 = str(path), None
        raise


def create(path: Path, content: str) -> None:
    """Write a file, unless it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with suppress(FileExistsError), open_parent(path) as folder:
        number = os.open(path.name, flags, 0o644, dir_fd=folder)
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(content)


def temporary_name(path: Path) -> str:
    return f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"


def remove(path: Path) -> None:
    """Remove a file or a link, if it is there. Raises OSError if its folder is a link."""
    with suppress(FileNotFoundError), open_parent(path) as folder:
        os.unlink(path.name, dir_fd=folder)


def open_to_append(path: Path) -> BinaryIO:
    """Open a file to append to it.

    Raises OSError for links, hard links, and everything that is not a file.
    """
    with open_parent(path) as folder:
        file = open(  # noqa: SIM115
            open_regular(path.name, os.O_RDWR | os.O_CREAT | os.O_APPEND, folder), "r+b"
        )
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        raise OSError(errno.EPERM, "a hard link", str(path))
    return file


def move(folder: Path, path: Path) -> None:
    """Move a folder to `path`, where an empty one may be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        path.rmdir()
    shutil.move(folder, path)


@contextmanager
def hold_lock(path: Path, *, is_patient: bool = False) -> Iterator[None]:
    """Hold the lock of a file, which is created if necessary.

    If another process holds it, wait if `is_patient`, else raise BlockingIOError.
    """
    with open(path, "ab", opener=open_regular) as file:
        # Only users who can write the file may take its lock, but reading is enough for flock.
        writers = os.fstat(file.fileno()).st_mode & 0o222
        with suppress(PermissionError):  # The file belongs to another user.
            os.fchmod(file.fileno(), writers | writers << 1)
        attempts = itertools.count() if is_patient else range(19)
        for _ in attempts:  # `is_locked` in another process takes the lock for a short time.
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.05)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def is_locked(path: Path) -> bool | None:
    """Check whether a live process on this machine holds the lock of a file.

    Returns None if the file cannot be opened.
    """
    try:
        with open(path, "rb", opener=open_regular) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:  # The file belongs to another user, or is not a regular file.
        return None
    return False


def remove_leftovers(path: Path, *, is_deep: bool = True) -> None:
    """Remove temporary files of killed writers, also in subfolders if `is_deep`.

    The caller holds the lock of the folder.
    """
    for leftover in path.rglob(".*") if is_deep else path.glob(".*"):
        if LEFTOVER.fullmatch(leftover.name):
            remove(leftover)


def write_atomically(path: Path, content: str) -> None:
    with atomic_file(path) as file:
        file.write(content.encode())


def write_json(path: Path, value: JsonObject) -> None:
    write_atomically(path, to_json(value) + "\n")


def read_json(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> JsonObject:
    """Read a JSON object, also from a .gz file. It is empty without a file.

    Raises OSError, or ValueError with the name of the file.
    """
    try:
        content = read_bytes(path, max_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        value = from_json(_unpack(content) if path.suffix == ".gz" else content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not contain a JSON object.")
    return value


def _unpack(content: bytes) -> bytes:
    try:
        with gzip.open(io.BytesIO(content)) as file:
            unpacked = file.read(MAX_UNPACKED_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(str(error)) from error
    if len(unpacked) > MAX_UNPACKED_BYTES:
        raise ValueError(f"more than {MAX_UNPACKED_BYTES:,} bytes")
    return unpacked


def from_json(content: str | bytes) -> Any:
    """Parse JSON, with None for numbers that are not finite.

    Raises ValueError for anything else and for deep trees.
    """
    try:
        return _finite(json.loads(content))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_bytes(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Read a file.

    Raises OSError for a link, a pipe and the like, and ValueError for a file of more bytes.
    """
    with open(path, "rb", opener=open_regular) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path} is larger than {max_bytes:,} bytes.")
    return content


def read_text(path: Path) -> str:
    """Read UTF-8 text.

    Raises ValueError for other bytes, and the errors of `read_bytes`.
    """
    return read_bytes(path).decode()


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file by column, one per line.

    There are none if the file does not exist. A spreadsheet may have saved the file. Lines with
    another number of cells are left out, such as an incomplete last one. Raises the errors of
    `read_bytes`.
    """
    try:
        return _parse_rows(read_bytes(path))
    except FileNotFoundError:
        return []


def _parse_rows(content: bytes) -> list[dict[str, str]]:
    source = content[: content.rfind(b"\n") + 1].decode(errors="replace").removeprefix("\ufeff")
    lines = [line for line in source.splitlines() if len(line) < csv.field_size_limit()]
    separator = "," if "," in "".join(lines[:1]) else ";"
    columns, *rows = (next(csv.reader([line], delimiter=separator), []) for line in lines or [""])
    return [dict(zip(columns, row, strict=True)) for row in rows if len(row) == len(columns)]


def truncate_rows(path: Path, last_epoch: int) -> str:
    """Rewrite a CSV file of `append_row`, if it exists, with the rows up to `last_epoch`.

    A file that another program wrote or damaged is renamed first. Returns a line to print about
    that, else an empty one.
    """
    try:
        content = read_bytes(path)
        all_rows = _parse_rows(content)
        complete_lines = content[: content.rfind(b"\n") + 1]
        is_own = content.count(b"\n") < 2 or _format_rows(all_rows).encode() == complete_lines
    except FileNotFoundError:
        return ""
    except ValueError:  # The file is too large.
        all_rows, is_own = [], False
    rows = [row for row in all_rows if row.get("epoch", "").isdecimal()]
    note = ""
    if not is_own or len(rows) < len(all_rows):
        damaged_path = unused_path(path.with_name(f"{path.name}.damaged"))
        path.rename(damaged_path)
        note = (
            f"{path} was damaged or changed: kept as {damaged_path.name}, "
            f"continued with its {len(rows)} readable rows"
        )
    write_rows(path, [row for row in rows if int(row["epoch"]) <= last_epoch])
    return note


def unused_path(path: Path) -> Path:
    """Return `path`, or if it exists the path with the first unused number: name-2, name-3."""
    names = itertools.chain([path.name], (f"{path.name}-{i}" for i in itertools.count(2)))
    return next(path for path in map(path.with_name, names) if not os.path.lexists(path))


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Format rows as CSV.

    Text that a spreadsheet would run as a formula is prefixed with a `'`.
    """
    safe_rows = (
        [FORMULA.sub("'", cell) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(safe_rows)
    return buffer.getvalue()


def strip_formula_mark(cell: str) -> str:
    """Undo the `'` of `csv_text`."""
    return MARKED.sub("", cell)


def write_rows(path: Path, rows: list[JsonObject]) -> None:
    """Replace a CSV file. Its columns are those of all rows, in order of appearance."""
    write_atomically(path, _format_rows(rows))


def _format_rows(rows: list[JsonObject]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def append_row(path: Path, row: JsonObject) -> None:
    """Append a row to a CSV file, which is rewritten if the row has a new column."""
    with io.TextIOWrapper(open_to_append(path), newline="") as file:
        _drop_half_line(file.buffer)
        file.seek(0)
        columns = next(csv.reader(file), [])
        if row.keys() <= set(columns):
            csv.DictWriter(file, columns, lineterminator="\n").writerow(row)
            file.flush()
            os.fsync(file.fileno())
            return
    write_rows(path, [*read_rows(path), row])


def _drop_half_line(file: BinaryIO) -> None:
    """Truncate the file after the last newline, for example after half a row from a full disk."""
    file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
    if file.read() not in (b"", b"\n"):
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def is_folder_of_user(path: Path) -> bool:
    """Check that a folder belongs to this user and is not a link.

    In /tmp, other users can create any name.
    """
    state = os.stat(path, follow_symlinks=False)
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()


def owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:  # The user belongs to another machine or to a container.
        return f"user {path.stat().st_uid}"


def open_regular(path: str, flags: int, folder: int | None = None) -> int:
    """Open a regular file, as an opener for `open`.

    A relative path begins in the descriptor `folder`, if given. Only this user may write a new
    file. Raises OSError for a link, a pipe, a device and the like.
    """
    try:
        number = os.open(
            path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder
        )
        if stat.S_ISREG(os.fstat(number).st_mode):
            return number
        os.close(number)
        code = errno.EINVAL
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
        code = error.errno
    raise OSError(code, "not a regular file", path)


def to_json(value: Any) -> str:
    """Format plain values as JSON. Numbers that are not finite become null."""
    return json.dumps(_finite(value), indent=1, allow_nan=False)


def print_json(value: Any) -> None:
    """Print plain values as the JSON value of a command."""
    from lockstep.system import json_output  # A worker does not need this import.

    json_output.put(_finite(value))


def print_result(value: Any) -> None:
    """Print plain values as the JSON value of a command with --json, in addition to its texts."""
    from lockstep.system import json_output

    if json_output.is_reserved():
        print_json(value)


def _finite(value: Any, level: int = 0) -> Any:
    if level > MAX_DEPTH:
        raise ValueError(f"it is nested in more than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {key: _finite(item, level + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [item if isinstance(item, str) else _finite(item, level + 1) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Standard output and error that never end a process: what cannot be shown is not shown, the work goes on.

A pipe whose reader has left, a closed descriptor, a terminal window that is gone and letters that a terminal does not
have are all met here, so that nothing else needs to think of them. Nor do names of files and classes that are printed
command a terminal; only `Terminal` of terminal.py does. Standard library only.
"""

import codecs
import contextlib
import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from typing_extensions import override

NAMES = ("stdin", "stdout", "stderr")  # by descriptor
GONE = (errno.EPIPE, errno.EIO, errno.EBADF)  # nobody reads this any more, unlike a disk that is full
PLAIN = {"─": "-", "━": "=", "±": "+-", "×": "x", "…": "...", "→": "->"}
ERRORS = "lockstep.plain"
# colours and characters that command, but for those around a text that is shown in the place of the last one
CONTROLS = re.compile(r"\x1b\[[\d;]*m|(?!\A\r|\x1b\[K\Z)[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Steady(io.RawIOBase):
    """Writes to a descriptor, and drops what it does not take."""

    def __init__(self, descriptor: int) -> None:
        self.name = f"<{NAMES[descriptor]}>"
        self.mode = "wb"
        self.is_gone = False
        self._descriptor = descriptor

    @override
    def write(self, data: Any, /) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError as error:
            self.is_gone = self.is_gone or error.errno in GONE
            return memoryview(data).nbytes

    @override
    def writable(self) -> bool:
        return True

    @override
    def fileno(self) -> int:
        return self._descriptor

    @override
    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


class Printed(io.TextIOWrapper):
    """Text without commands to a terminal."""

    @override
    def write(self, s: str, /) -> int:
        return super().write(without_commands(s))


class Unfiltered:
    """The same stream, for a writer that commands a terminal and removes commands from texts itself."""

    def __init__(self, stream: Printed) -> None:
        self._stream = stream
        self.write = super(Printed, stream).write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def without_commands(text: str) -> str:
    """A text without colours; a blank takes the place of any other character that commands a terminal."""
    return CONTROLS.sub(lambda found: "" if found[0].endswith("m") else " ", text)


def outlive() -> None:
    """Let this process, and those it starts, outlive the readers of its output.

    To be called before anything is opened: a closed descriptor would become that of the next file, and what libraries
    print would be written into it.
    """
    for descriptor, name in enumerate(NAMES):
        if getattr(sys, name) is None:  # Python found it closed
            _fill(descriptor)
            setattr(sys, name, open(os.devnull, "w" if descriptor else "r", encoding="utf-8"))  # noqa: SIM115
    codecs.register_error(ERRORS, _plain)
    for descriptor, name in enumerate(NAMES[1:], 1):
        before = getattr(sys, name)
        if isinstance(before, io.TextIOWrapper) and _raw(before) is None and before.fileno() == descriptor:
            before.flush()
            setattr(sys, name, _steady(before, descriptor))


def is_read() -> bool:
    """Whether standard output still has a reader, as far as was noticed when something was written."""
    raw = _raw(sys.stdout)
    return raw is None or not raw.is_gone


def _steady(before: io.TextIOWrapper, descriptor: int) -> io.TextIOWrapper:
    raw: Any = _Steady(descriptor)
    return Printed(
        raw if before.write_through else io.BufferedWriter(raw),
        encoding=before.encoding,
        errors=ERRORS,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )


def _raw(stream: Any) -> _Steady | None:
    """The descriptor below a stream that was made here."""
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    return raw if isinstance(raw, _Steady) else None


def _fill(descriptor: int) -> None:
    """Let a closed descriptor lead nowhere; one that something has taken since stays."""
    with contextlib.suppress(OSError):
        os.fstat(descriptor)
        return
    null = os.open(os.devnull, os.O_RDWR)  # the lowest that is free: most often this one
    if null == descriptor:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, descriptor)
        os.close(null)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Other letters for those that a terminal has not; for a name of a file its code, by which it can be found."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_letters(text)), error.end


def _letters(text: str) -> Iterator[str]:
    for letter in text:
        yield PLAIN.get(letter) or letter.encode("ascii", "backslashreplace").decode()

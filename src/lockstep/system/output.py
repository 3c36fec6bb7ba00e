"""Standard output and error that never end a process: what cannot be shown is not shown, and the work continues.

A pipe whose reader has left, a closed descriptor, a closed terminal window and letters that an encoding lacks are met
here alone. Nor can a printed name of a file or class command the terminal; only `Terminal` of terminal.py does.
"""

import io
import os
import re
import sys
from typing import Any

from typing_extensions import override

# colours and characters that command, but for those around a text that is shown in the place of the last one
CONTROLS = re.compile(r"\x1b\[[\d;]*m|(?!\A\r|\x1b\[K\Z)[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Steady(io.FileIO):
    """Writes to a descriptor, and drops what it does not take."""

    is_gone = False

    @override
    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        try:
            return super().write(data) or size  # None: a full pipe that does not block
        except OSError:
            self.is_gone = True
            return size


class Printed(io.TextIOWrapper):
    """Text without commands to a terminal, in place of the stream `before`."""

    def __init__(self, before: io.TextIOWrapper) -> None:
        self.raw = _Steady(before.fileno(), "w", closefd=False)
        super().__init__(
            io.BufferedWriter(self.raw),
            before.encoding,
            "backslashreplace",
            line_buffering=before.line_buffering or before.write_through,
        )

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
    """Let this process outlive the readers of its output. To be called before anything is opened."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # a closed descriptor, which the next file that is opened would get
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115
        elif name != "stdin" and stream is getattr(sys, f"__{name}__"):  # not that of a notebook, or one from here
            stream.flush()
            setattr(sys, name, Printed(stream))


def is_read() -> bool:
    """Whether standard output still has a reader, as far as was noticed when something was written."""
    return not (isinstance(sys.stdout, Printed) and sys.stdout.raw.is_gone)

"""Standard output and error that never end a process, and drop text that cannot be printed.

Handles a pipe without a reader, a closed descriptor, a closed terminal, and characters that an
encoding lacks. Removes terminal commands from printed names of files and classes. Only `Terminal`
of terminal.py writes commands.
"""

import io
import os
import re
import sys
from typing import Any

from typing_extensions import override

# These are colors and control characters, except those around a text that replaces the previous
# one.
CONTROLS = re.compile(r"\x1b\[[\d;]*m|(?!\A\r|\x1b\[K\Z)[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Steady(io.FileIO):
    """Writes to a descriptor, and drops the data that it does not accept."""

    @override
    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        try:
            # The result is None for a full pipe that does not block.
            return super().write(data) or size
        except OSError:
            return size


class Printed(io.TextIOWrapper):
    """Replaces `stream`, and removes terminal commands."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(
            io.BufferedWriter(_Steady(stream.fileno(), "w", closefd=False)),
            stream.encoding,
            "backslashreplace",
            line_buffering=stream.line_buffering or stream.write_through,
        )

    @override
    def write(self, s: str, /) -> int:
        return super().write(strip_commands(s))


class Unfiltered:
    """The same stream for a writer that commands a terminal.

    Such a writer removes commands from texts itself.
    """

    def __init__(self, stream: Printed) -> None:
        self._stream = stream
        self.write = super(Printed, stream).write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_error(message: str) -> None:
    """Print a message to standard error at once."""
    print(message, file=sys.stderr, flush=True)


def strip_commands(line: str) -> str:
    """Remove colors, and replace every other character that commands a terminal by a blank."""
    return CONTROLS.sub(lambda match: "" if match[0].endswith("m") else " ", line)


def outlive() -> None:
    """Let this process outlive the readers of its output.

    This must be called before any file is opened.
    """
    for stream_name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, stream_name)
        # The next opened file would get this closed descriptor.
        if stream is None:
            setattr(sys, stream_name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115
        # The stream of a notebook, or one that this function made, is not replaced.
        elif stream_name != "stdin" and stream is getattr(sys, f"__{stream_name}__"):
            stream.flush()
            setattr(sys, stream_name, Printed(stream))

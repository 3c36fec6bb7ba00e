"""Commands on a pseudo-terminal."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.harness import PATIENCE_S, environ, wait_until


class OnTerminal:
    """A command on a terminal with this number of columns."""

    def __init__(self, columns: int, *words: str, **variables: str) -> None:
        self._us, them = pty.openpty()
        fcntl.ioctl(them, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        kept = {
            name: value
            for name, value in environ().items()
            if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lockstep.cli.main", *words],
            stdin=them,
            stdout=them,
            stderr=them,
            env={**kept, "TERM": "xterm-256color", **variables},
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(them)
        self.text = ""

    def type(self, keys: str) -> None:
        """Type keys once the command waits: input() misses a Ctrl-C before."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", "waiting")
        os.write(self._us, keys.encode())

    def wait_for(self, pattern: str) -> str:
        """Read until the text contains the pattern. Returns the whole text."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, self.text
            assert self._read() or re.search(pattern, self.text), self.text
        return self.text

    def end(self) -> int:
        """Read to the end. Returns the exit code."""
        while self._read() or self.process.poll() is None:
            pass
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._us)

    def _read(self) -> bool:
        if not select.select([self._us], [], [], 10)[0]:
            return self.process.poll() is None
        try:
            self.text += os.read(self._us, 65536).decode()
        except OSError:  # the other side is closed
            return False
        return True


@contextlib.contextmanager
def on_terminal(columns: int, *words: str, **variables: str) -> Iterator[OnTerminal]:
    shown = OnTerminal(columns, *words, **variables)
    try:
        yield shown
    finally:
        shown.close()


def take_terminal() -> None:
    """Make Ctrl-C a signal, which the parent of the tests may ignore."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)

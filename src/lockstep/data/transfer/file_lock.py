"""What processes that need the same files share: a lock, and a line on how far work is."""

import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

LINE_S = 10.0  # between two lines where the output is no terminal


def locked(path: Path, what: str) -> AbstractContextManager[object]:
    """Take the lock of a file; while another process has it, wait, and print that this one does `what`.

    The kernel releases it when its process ends, however that ends. The file stays.
    """
    from filelock import FileLock, Timeout  # not at the start of every command: 0.03 s

    lock = FileLock(path)
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        print(f"Waiting for another process, which {what}.", flush=True)
        return lock.acquire()


class Progress:
    """A line that moves on a terminal; elsewhere a line now and then."""

    def __init__(self, what: str, unit: str) -> None:
        self._what = what
        self._unit = unit
        self._started = self._last = time.monotonic()
        self._is_terminal = sys.stdout.isatty()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the work began."""
        return time.monotonic() - self._started

    def show(self, num_done: int, total: int) -> None:
        """Print how much is done, unless a line was printed a moment ago."""
        now = time.monotonic()
        if now - self._last < (0.25 if self._is_terminal else LINE_S):
            return
        self._last = now
        line = f"{self._what}: {num_done:,} of {total:,}, {num_done / self.elapsed_s:,.0f} {self._unit}/s"
        print(f"\r{line}\x1b[K" if self._is_terminal else line, end="" if self._is_terminal else "\n", flush=True)

    def end(self) -> None:
        """Clear the line on a terminal, so that others can be printed."""
        if self._is_terminal:
            print("\r\x1b[K", end="", flush=True)

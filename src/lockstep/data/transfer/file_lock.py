"""What processes that need the same files share: a lock the kernel lets go of, and a line on how far its holder is."""

import fcntl
import os
import sys
import time

POLL_S = 0.2
LINE_S = 10.0  # between two lines about a build where the output is no terminal


class Lock:
    """The lock of a place; its file tells waiting processes how far the holder is."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._progress: Progress | None = None

    def take(self) -> bool:
        """Try to take the lock, without waiting. Returns whether this process holds it now."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def tell(self, num_done: int, total: int) -> None:
        """Write down how many of `total` files are done."""
        os.pwrite(self._descriptor, f"{num_done:>20} {total:>20}".encode(), 0)

    def show_holder(self, what: str, unit: str) -> None:
        """Show what the holder wrote; `what` it does."""
        words = os.pread(self._descriptor, 41, 0).split()
        done, total = map(int, words) if len(words) == 2 else (0, 0)
        if self._progress is None:
            self._progress = Progress(f"Another process {what}", unit)
        self._progress.show(done, total)


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

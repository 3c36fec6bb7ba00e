"""Lock files that several processes need, and print lines of progress."""

import time
from contextlib import AbstractContextManager
from pathlib import Path

LINE_S = 10.0  # seconds between two lines


def wait_for_lock(path: Path, activity: str) -> AbstractContextManager[object]:
    """Acquire the lock of a file, which the returned context manager releases.

    While another process holds the lock, wait, and print its `activity`, as in "copies flowers".
    The kernel releases the lock when its process exits. The file is not deleted. Any thread may
    release the lock.
    """
    # The import takes 0.03 s, which not every command should spend at its start.
    from filelock import FileLock, Timeout

    lock = FileLock(path, thread_local=False)
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        print(f"Waiting for another process, which {activity}.", flush=True)
        return lock.acquire()


class Progress:
    """Prints a line of progress every ten seconds."""

    def __init__(self, activity: str) -> None:
        self._activity = activity
        self._started = self._last = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def show(self, num_done: int, total: int) -> None:
        time_s = time.monotonic()
        if time_s - self._last >= LINE_S:
            self._last = time_s
            print(f"{self._activity}: {num_done:,} of {total:,}", flush=True)

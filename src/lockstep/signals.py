"""Signals as a flag: a handler that does anything more can deadlock a run of many processes."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class SignalFlag:
    """Remembers the first stop signal of this process. A second Ctrl-C leaves at once, with KeyboardInterrupt."""

    def __init__(self) -> None:
        self.received = 0

    def install(self) -> None:
        """Take over the stop signals, also from whoever took them since the last call; deliver what was held back."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = self.received or number


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold signals that ask to stop back from this thread, and from the processes that are started in the meantime.

    Those keep it so until they have handlers: a signal in their first moments neither ends them nor is lost.
    """
    from multiprocessing import resource_tracker  # not for commands that start nothing

    resource_tracker.ensure_running()  # its start, with the first process, lets signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

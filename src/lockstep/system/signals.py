"""Records signals as a flag, because a handler that does more can deadlock.

`callbacks/stop.py` turns the flag into one decision of all ranks.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from typing_extensions import override

from lockstep.system import internals

# A hangup that was ignored when this process began, as under nohup, stays ignored.
_HANGUP = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, *_HANGUP)
# Ctrl-\ sends it. A parent also sends it to its workers for a second Ctrl-C.
LEAVE = signal.SIGQUIT


class Ended(BaseException):
    """A stop signal, the only argument, ends a task that has nothing to save."""


class SignalFlag:
    """Records the stop signals of this process.

    A second Ctrl-C, or SIGQUIT, raises KeyboardInterrupt. In a worker (`has_parent`), a second
    Ctrl-C does nothing, because the parent counts them and sends SIGQUIT. With `ends`, the first
    signal raises `Ended`. Python calls handlers only in the main thread, so in another thread the
    flag records nothing.
    """

    def __init__(self, *, has_parent: bool = False, ends: bool = False) -> None:
        self.numbers: list[int] = []
        self.aborted_by = ""  # What raised KeyboardInterrupt
        self._has_parent = has_parent
        self._ends = ends

    @property
    def received(self) -> int:
        """The first stop signal, or 0."""
        return self.numbers[0] if self.numbers else 0

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        with restore_signals():
            self.install()
            yield

    def install(self) -> None:
        """Handle the signals from now on, including those that were blocked until now."""
        if is_main_thread():
            for number in (*STOP_SIGNALS, LEAVE):
                signal.signal(number, self._handle)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOP_SIGNALS, LEAVE))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_repeated = signal.SIGINT in self.numbers
        is_second = number == signal.SIGINT and is_repeated and not self._has_parent
        if number == LEAVE or is_second:
            self.aborted_by = "a second Ctrl-C" if is_repeated else LEAVE.name
            raise KeyboardInterrupt
        self.numbers.append(number)
        if self._ends and len(self.numbers) == 1:
            raise Ended(number)


class SignalList(SignalFlag):
    """Records every signal, in order, for a process that forwards them."""

    @override
    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.numbers.append(number)


def report_end(number: int, detail: str = "") -> None:
    """Print the line of a command that a signal has terminated.

    A handler may call this in the middle of another print.
    """
    line = f"lockstep: terminated by {signal.Signals(number).name}"
    if detail:
        line += f", {detail}"
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


@contextlib.contextmanager
def restore_signals() -> Iterator[None]:
    """Restore the handlers of stop signals, and of Ctrl-Z, after the block."""
    handlers = [
        (number, signal.getsignal(number)) for number in (*STOP_SIGNALS, LEAVE, signal.SIGTSTP)
    ]
    try:
        yield
    finally:
        if is_main_thread():
            for number, handler in handlers:
                signal.signal(number, handler)


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Block the signals inside the block.

    A process that is started in the block keeps them blocked until it has handlers.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, LEAVE))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def run_exit_functions() -> None:
    """Run the registered exit functions of a process whose exit code is decided.

    The process ignores signals from now on.
    """
    for number in (*STOP_SIGNALS, LEAVE):
        signal.signal(number, signal.SIG_IGN)
    internals.run_exit_functions()


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()

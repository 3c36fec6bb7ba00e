"""Signals as a flag: a handler that does anything more can deadlock a run of many processes.

`launch/spawn.py` and `launch/supervision.py` pass signals on; `callbacks/stop.py` makes them one decision of all ranks.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import ClassVar

# a hangup that was ignored when this process began, as under nohup, stays so
_HANGUP = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, *_HANGUP)
LEAVE = signal.SIGQUIT  # Ctrl-\; also from the process that watches this one: a second Ctrl-C came
PAUSE_ENDS = b"\0"  # among the numbers of signals that a thread hears
TWICE_S = 0.5  # a stop signal that comes again sooner is the same one, from the terminal and from whoever watches


class Ended(BaseException):
    """A stop signal ends a task that has nothing to save; `number` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def can_handle() -> bool:
    """Whether this thread may install handlers: Python lets the main thread alone do so, and calls them there."""
    return threading.current_thread() is threading.main_thread()


class SignalFlag:
    """Remembers the stop signals of this process. A second Ctrl-C leaves at once, with KeyboardInterrupt.

    In another thread than the main one it takes no signals, and remembers none.

    Where the process `is_watched`, Ctrl-C may reach it twice, from the terminal and from the process that watches it:
    that one counts, and sends `LEAVE`.
    """

    def __init__(self, *, is_watched: bool = False) -> None:
        self.numbers: list[int] = []
        self.left_by = ""  # what made it leave at once
        self._is_watched = is_watched

    @property
    def received(self) -> int:
        """The first stop signal, 0 before it."""
        return self.numbers[0] if self.numbers else 0

    def install(self) -> None:
        """Take over the stop signals, also from whoever took them since the last call; deliver what was held back."""
        if not can_handle():
            return
        before = early()
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)
        signal.signal(LEAVE, self._handle_leave)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        if before is not None:
            before.hand_over()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the stop signals inside of the block."""
        with given_back():
            self.install()
            yield

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_second = number == signal.SIGINT and self.received == signal.SIGINT
        self.numbers.append(number)
        if is_second and not self._is_watched:
            self._handle_leave(number, frame)

    def _handle_leave(self, number: int, frame: FrameType | None) -> None:
        self.left_by = "a second Ctrl-C" if signal.SIGINT in self.numbers else LEAVE.name
        raise KeyboardInterrupt


class SignalList(SignalFlag):
    """Remembers all stop signals, for a process that passes them on; none of them ends it.

    Where the process `is_watched`, a signal that comes again is passed over: it may be the same one, by way of the
    process that watches. That one sends `LEAVE` for a second Ctrl-C.
    """

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not (self._is_watched and number in self.numbers):
            self.numbers.append(number)

    def _handle_leave(self, number: int, frame: FrameType | None) -> None:
        if number == LEAVE:  # a second Ctrl-C is counted by those it is passed on to
            self.numbers.append(number)


class SignalEnd(SignalFlag):
    """Ends a task that has nothing to save by its first stop signal, with `Ended`.

    A later signal ends the process itself: Python drops an exception that is raised inside of `__del__`.
    """

    _first_at_s = 0.0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.numbers:
            self.numbers.append(number)
            self._first_at_s = time.monotonic()
            raise Ended(number)
        if time.monotonic() - self._first_at_s > TWICE_S:
            say_ended(number)
            os._exit(128 + number)


class Early:
    """Ends this process by the first stop signal, with one line and code 128 + number, while nothing is under way.

    In force for the signals that nobody has taken over since. A thread hears them: the main thread may wait for other
    processes where no handler of Python's runs. Who takes over in the moment before the thread runs gets them.
    """

    listening: "ClassVar[Early | None]" = None  # the one of this process, while it has a thread

    def __init__(self) -> None:
        self._heard: list[int] = []
        self._num_pauses, self._num_ended = 0, 0  # counted by the main thread, and by the one that listens

    def begin(self) -> None:
        """Install the handlers of stop signals."""
        for number in STOP_SIGNALS:
            signal.signal(number, self.hear)
        self.listen()

    def listen(self) -> None:
        """Start the thread that hears the signals for which handlers are installed."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        Early.listening = self

    def end(self) -> None:
        """Listen no more; the signals are still taken, and pass unheard."""
        Early.listening = None
        signal.set_wakeup_fd(-1)
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Keep a signal for whoever takes over; Python has told the thread of it already."""
        self._heard.append(number)

    def pause(self) -> None:
        """Somebody takes the signals over for a while, and is to keep them, however late the thread hears of them."""
        self._num_pauses += 1

    def go_on(self) -> None:
        """What comes from now on is for the thread again. To be called while the signals are blocked."""
        if Early.listening is self:
            os.write(self._write, PAUSE_ENDS)
        else:
            self._num_ended += 1

    def hand_over(self) -> None:
        """Give the signals that the thread came too late for to who has taken over."""
        while self._heard:
            signal.raise_signal(self._heard.pop(0))

    def _listen(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # what is held back from the main thread is not for this
        while numbers := os.read(self._read, 1):
            number = numbers[0]
            self._num_ended += numbers == PAUSE_ENDS
            is_paused = self._num_pauses != self._num_ended
            if not is_paused and number in STOP_SIGNALS and signal.getsignal(number) == self.hear:
                say_ended(number, "no run is under way")
                os._exit(128 + number)


def end_at_once() -> None:
    """Let stop signals end this process at once, until another handler takes them; a second call changes nothing."""
    if early() is None:
        Early().begin()


def early() -> Early | None:
    """What ends this process by a stop signal at once, where that is in force."""
    taker = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return taker if isinstance(taker, Early) else None


@contextlib.contextmanager
def unthreaded() -> Iterator[None]:
    """Have no thread that hears signals inside of the block, for a process with threads is not forked."""
    listener = Early.listening
    if listener is not None:
        listener.end()
    try:
        yield
    finally:
        if listener is not None:
            listener.listen()


def as_new() -> None:
    """Give stop signals back to what Python begins with, in a fork of a process that has taken them."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.signal(LEAVE, signal.SIG_DFL)


def as_usual() -> None:
    """Give stop signals back to Python, for commands that live by KeyboardInterrupt."""
    listener = early()
    if listener is not None:
        as_new()
        listener.end()
        listener.hand_over()


def say_ended(number: int, what: str = "") -> None:
    """The line for a command that a signal has ended."""
    print(f"lockstep: ended by {signal.Signals(number).name}{what and f', {what}'}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """Give the stop signals back, after the block, to whoever had them before."""
    if not can_handle():
        yield
        return
    before = [(number, signal.getsignal(number)) for number in (*STOP_SIGNALS, LEAVE)]
    listener = early()
    if listener is not None:
        listener.pause()
    try:
        yield
    finally:
        with blocked():
            for number, handler in before:
                signal.signal(number, handler)
            if listener is not None:
                listener.go_on()


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Hold stop signals back from this thread until the end of the block, and for good from programs it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold signals that ask to stop back from this thread, and from the processes that are started in the meantime.

    Those keep it so until they have handlers: a signal in their first moments neither ends them nor is lost.
    """
    from multiprocessing import resource_tracker  # not for commands that start nothing

    resource_tracker.ensure_running()  # its start, with the first process, lets signals through
    with blocked():
        yield

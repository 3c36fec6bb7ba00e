"""A process that computes by itself has one that waits for it, and tells what it cannot tell itself: that it died.

`begin`: the command goes on in a fork, made before torch is imported; what stays behind passes signals on and costs
nothing. Workers have their parent for that (spawn.py), trials of a sweep have the sweep.

`stand_by`: the fork is made at once, and imports torch on another core while this process checks the configuration;
`hand_over` gives it the work. The first step comes half a second sooner. Only what is light is imported here at once.
"""

import contextlib
import json
import mmap
import os
import pickle
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from lockstep.runs.folder import EXIT_FAILED, EXIT_INTERRUPTED, GRACE_S, LIVE_STATES, RunFolder
from lockstep.system import signals
from lockstep.system.process import die_with, leave
from lockstep.system.signals import LEAVE, STOP_SIGNALS, SignalFlag

if TYPE_CHECKING:
    from lockstep.launch.spawn import Job
    from lockstep.system.launcher import World

T = TypeVar("T")
PAGE = 16384  # bytes: more than the path of a run folder
READY = b"\0"


class Known(NamedTuple):
    """What the process that waits knows of the work of the other one."""

    task: str
    folder: str
    rank: int
    world_size: int


class Standby(NamedTuple):
    """A fork of this process that imports what a training needs, and waits for its work."""

    pid: int
    requests: int  # a pipe, in which it reads its work
    results: int  # a pipe, in which it writes that it is ready, and later what its work has returned
    environ: Mapping[str, str]  # what torch reads while it is imported


class Handed(NamedTuple):
    """Work for the process that stands by, and what may have changed in this one since they parted."""

    work: Callable[[], Any]
    cwd: str
    sys_path: Sequence[str]
    argv: Sequence[str]


_known: mmap.mmap | None = None  # memory of this process and the one that waits for it: what is under way
_standby: Standby | None = None


def begin() -> None:
    """Go on in a fork of this process; what stays behind ends as the fork ends, and never returns.

    Does nothing in a process that is watched already, or that a debugger follows, which knows this one alone.
    """
    if _known is not None or sys.gettrace() is not None:
        return
    early = signals.early()
    before = _blocked(early)
    child = _forked()
    if child:
        _leave(_wait(child, GRACE_S))
    if early is not None:
        early.begin()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stand_by() -> None:
    """Fork a process that imports torch meanwhile, for `hand_over`; none where a debugger follows this one.

    It holds stop signals back until it has work, and ends with this process.
    """
    global _standby
    if sys.gettrace() is not None or not hasattr(os, "fork"):
        return
    requests, results = os.pipe(), os.pipe()
    early = signals.early()
    before = _blocked(early)
    child = _forked()
    if child == 0:
        os.close(requests[1])
        os.close(results[0])
        _stand_by(requests[0], results[1], before)
    os.close(requests[0])
    os.close(results[1])
    _standby = Standby(child, requests[1], results[0], dict(os.environ))
    if early is not None:
        early.begin()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def dismiss() -> None:
    """End the process that stands by, if there is one: it is not needed."""
    global _known, _standby
    if _standby is None:
        return
    os.kill(_standby.pid, signal.SIGKILL)
    os.waitpid(_standby.pid, 0)
    os.close(_standby.requests)
    os.close(_standby.results)
    _known = _standby = None


def has_standby() -> bool:
    """Whether there is a process to hand work over to; one with other variables than this one has now is dismissed."""
    if _standby is not None and _standby.environ != os.environ:
        dismiss()
    return _standby is not None


def hand_over(work: Callable[[], T]) -> T:
    """Have the process that stands by do the work, a function that can be pickled, and wait for it.

    Where it ends without a result, by a signal or with another code than 0, this process ends as it does. Until it is
    ready stop signals end this process, and it with it.
    """
    global _known, _standby
    assert _standby is not None
    os.read(_standby.results, len(READY))  # nothing, if it died: `_wait` tells
    _blocked(signals.early())
    sys.stdout.flush()
    sys.stderr.flush()
    handed = pickle.dumps(Handed(work, os.getcwd(), sys.path, sys.argv))
    with contextlib.suppress(BrokenPipeError), open(_standby.requests, "wb") as requests:  # likewise
        requests.write(handed)
    code = _wait(_standby.pid, 2 * GRACE_S)  # its workers have half of that
    os.set_blocking(_standby.results, False)  # its forks may still have the pipe, too
    try:
        result = os.read(_standby.results, PAGE)
    except BlockingIOError:
        result = b""
    os.close(_standby.results)
    _known = _standby = None
    if code or not result:
        _leave(code)
    return pickle.loads(result)


def flag() -> SignalFlag:
    """The stop signals of this process, as they reach it with or without another one that watches it."""
    return SignalFlag(is_watched=is_watched())


def is_watched() -> bool:
    """Whether another process waits for this one, and passes signals on that may have reached it already."""
    return _known is not None


def run(job: "Job", world: "World | None", flag: SignalFlag) -> int:
    """`spawn.run_here`, known to the process that waits for this one. Returns the exit code."""
    from lockstep.launch import spawn

    if _known is None:
        return spawn.run_here(job, world, flag)
    rank, world_size = (world.rank, world.world_size) if world is not None else (0, 1)
    text = json.dumps(Known(job.task, job.folder, rank, world_size)) + "\n"
    _known[: len(text)] = text.encode()
    try:
        return spawn.run_here(job, world, flag)
    finally:
        _known[: len(text)] = bytes(len(text))  # the work is done, and how it ended is on record


def _blocked(early: signals.Early | None) -> set[int]:
    """Hold signals back, and end the thread that hears them: a process with threads is not forked. What was held."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, LEAVE))
    if early is not None:
        early.end()
    return before


def _forked() -> int:
    """Fork this process, for which the other one waits; that one dies with it. Returns as os.fork does."""
    global _known
    sys.stdout.flush()
    sys.stderr.flush()
    _known = mmap.mmap(-1, PAGE)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with(parent)
    return child


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# -- in the process that stands by -------------------------------------------------------------------------------------


def _stand_by(requests: int, results: int, mask: set[int]) -> NoReturn:
    """Import what a training needs, do the work that comes, and leave with its code."""
    try:
        from lockstep.launch.preload import import_training

        with contextlib.suppress(Exception):  # the training meets it again, and puts it on record
            import_training()
        os.write(results, READY)
        with open(requests, "rb") as file:
            text = file.read()
        if text:
            leave(lambda: _do(text, results, mask))
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(EXIT_FAILED)


def _do(text: bytes, results: int, mask: set[int]) -> int:
    handed: Handed = pickle.loads(text)
    sys.path[:], sys.argv[:] = handed.sys_path, handed.argv
    os.chdir(handed.cwd)
    (signals.early() or signals.Early()).begin()  # that of the other process has no thread here
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    result = handed.work()
    with open(results, "wb") as file:
        pickle.dump(result, file)
    return 0


# -- in the process that waits -----------------------------------------------------------------------------------------


def _wait(child: int, leave_s: float) -> int:
    """Pass signals on until the other process ends. Returns its exit code; of one that a signal ended this tells.

    To leave at once it has `leave_s`. Signals that come afterwards are ignored: what is left to do takes a moment.
    """
    num_interrupts, left_by = 0, ""

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal num_interrupts, left_by
        num_interrupts += number == signal.SIGINT
        if number == LEAVE or (number == signal.SIGINT and num_interrupts > 1):
            left_by = left_by or ("a second Ctrl-C" if number == signal.SIGINT else LEAVE.name)
            number = LEAVE
            signal.alarm(round(leave_s))
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(child, signal.SIGKILL if number == signal.SIGALRM else number)

    for number in (*STOP_SIGNALS, LEAVE, signal.SIGALRM):
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOP_SIGNALS, LEAVE))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(0)
    for number in (*STOP_SIGNALS, LEAVE):
        signal.signal(number, signal.SIG_IGN)
    if code < 0:
        assert _known is not None
        line = _known[:].partition(b"\n")[0].rstrip(b"\0")
        try:
            code = _tell(Known(*json.loads(line)) if line else None, code, left_by)
        except Exception:  # the border of a process: its exit code stays true
            traceback.print_exc()
            code = 128 - code
    return code


def _tell(known: Known | None, code: int, left_by: str) -> int:
    """Tell of a process that a signal ended, where people look for it. Returns the exit code."""
    from lockstep.config import storage
    from lockstep.launch import notification, spawn
    from lockstep.launch.spawn import Job
    from lockstep.runs import vitals

    if left_by and known is not None:
        vitals.forget(RunFolder(Path(known.folder)), known.rank)
        return spawn.left_at_once(Job(known.task, known.folder, {}), left_by, has_record=True)
    if left_by and left_by != LEAVE.name:
        return EXIT_INTERRUPTED
    if known is None:
        signals.say_ended(-code)
        return 128 - code
    job, folder = Job(known.task, known.folder, {}), RunFolder(Path(known.folder))
    spawn.record_death(job, known.rank, known.world_size, code)
    if known.rank > 0:
        _await_end(folder)  # which rank 0 notices, and tells
    spawn.show_failure(job)
    if job.task in spawn.UNSAVED:  # their folder is of no use to anybody
        shutil.rmtree(folder.path, ignore_errors=True)
        return 128 - code
    spawn.remove_copy(job)
    if known.rank == 0 and job.task == "train":
        notification.send(storage.load(folder.config), folder, 128 - code)
    return 128 - code


def _await_end(folder: RunFolder) -> None:
    deadline = time.monotonic() + GRACE_S
    while folder.read_status().get("state") in LIVE_STATES and time.monotonic() < deadline:
        time.sleep(0.1)

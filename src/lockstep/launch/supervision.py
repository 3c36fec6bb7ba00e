"""A process that computes by itself has one that waits for it, and tells what it cannot tell itself: that it died.

The command goes on in a fork, made before torch is imported; what stays behind passes signals on and costs nothing.
Workers have their parent for that (spawn.py), trials of a sweep have the sweep.
"""

import contextlib
import json
import mmap
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from lockstep.config import storage
from lockstep.launch import notification, spawn
from lockstep.launch.spawn import GRACE_S, Job
from lockstep.runs import vitals
from lockstep.runs.folder import EXIT_INTERRUPTED, LIVE_STATES, RunFolder
from lockstep.system import signals
from lockstep.system.launcher import World
from lockstep.system.signals import LEAVE, STOP_SIGNALS, SignalFlag

PAGE = 16384  # bytes: more than the path of a run folder


class Known(NamedTuple):
    """What the process that waits knows of the work of the other one."""

    task: str
    folder: str
    rank: int
    world_size: int


_known: mmap.mmap | None = None  # memory of this process and the one that waits for it: what is under way


def begin() -> None:
    """Go on in a fork of this process; what stays behind ends as the fork ends, and never returns.

    Does nothing in a process that is watched already, or that a debugger follows, which knows this one alone.
    """
    global _known
    if _known is not None or sys.gettrace() is not None:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, LEAVE))
    early = signals.early()
    if early is not None:
        early.end()  # a process with threads is not forked
    sys.stdout.flush()
    sys.stderr.flush()
    _known = mmap.mmap(-1, PAGE)
    parent = os.getpid()
    child = os.fork()
    if child:
        _wait(child, _known)
    spawn.die_with(parent)
    if early is not None:
        early.begin()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def flag() -> SignalFlag:
    """The stop signals of this process, as they reach it with or without another one that watches it."""
    return SignalFlag(is_watched=_known is not None)


def run(job: Job, world: World | None, flag: SignalFlag) -> int:
    """`spawn.run_here`, known to the process that waits for this one. Returns the exit code."""
    if _known is None:
        return spawn.run_here(job, world, flag)
    rank, world_size = (world.rank, world.world_size) if world is not None else (0, 1)
    text = json.dumps(Known(job.task, job.folder, rank, world_size)) + "\n"
    _known[: len(text)] = text.encode()
    try:
        return spawn.run_here(job, world, flag)
    finally:
        _known[: len(text)] = bytes(len(text))  # the work is done, and how it ended is on record


# -- in the process that waits -----------------------------------------------------------------------------------------


def _wait(child: int, memory: mmap.mmap) -> NoReturn:
    """Pass signals on until the other process ends, and end as it does. To leave at once it has `GRACE_S`."""
    num_interrupts, left_by = 0, ""

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal num_interrupts, left_by
        num_interrupts += number == signal.SIGINT
        if number == LEAVE or (number == signal.SIGINT and num_interrupts > 1):
            left_by = left_by or ("a second Ctrl-C" if number == signal.SIGINT else LEAVE.name)
            number = LEAVE
            signal.alarm(round(GRACE_S))
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(child, signal.SIGKILL if number == signal.SIGALRM else number)

    for number in (*STOP_SIGNALS, LEAVE, signal.SIGALRM):
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOP_SIGNALS, LEAVE))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(0)
    for number in (*STOP_SIGNALS, LEAVE):
        signal.signal(number, signal.SIG_IGN)  # what is left to do takes a moment
    if code < 0:
        line = memory[:].partition(b"\n")[0].rstrip(b"\0")
        try:
            code = _tell(Known(*json.loads(line)) if line else None, code, left_by)
        except Exception:  # the border of a process: its exit code stays true
            traceback.print_exc()
            code = 128 - code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _tell(known: Known | None, code: int, left_by: str) -> int:
    """Tell of a process that a signal ended, where people look for it. Returns the exit code."""
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

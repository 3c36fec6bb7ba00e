"""Heartbeats of the ranks of a run, and how a process died.

A rank that is killed, frozen or cut off cannot report it, and the others see a broken connection or a timeout. So a
thread of each rank touches a file once a second, and `faulthandler` writes a stack into the log of the rank when a
signal such as SIGSEGV ends it. Other ranks and the parent read both.
"""

import contextlib
import faulthandler
import os
import re
import signal
import socket
import sysconfig
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from lockstep.runs.folder import RunFolder

BEAT_S = 1.0
LOOK_S = 5.0  # a rank without a heartbeat for so long is silent
FRAME = re.compile(r'^ +File "(?P<path>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)


@contextlib.contextmanager
def shown(folder: RunFolder, rank: int) -> Iterator[None]:
    """Keep the heartbeat of this rank, and `faulthandler` on its log, until the block ends."""
    heartbeat = folder.heartbeat(rank)
    heartbeat.write_text(f"{socket.gethostname()} {os.getpid()}\n")
    is_over = threading.Event()
    thread = threading.Thread(target=_beat, args=(heartbeat, is_over), daemon=True)
    thread.start()
    try:
        with open(folder.rank_log(rank), "ab") as log:
            faulthandler.enable(log)
            try:
                yield
            finally:
                faulthandler.disable()
    finally:
        is_over.set()
        thread.join()
        forget(folder, rank)


def forget(folder: RunFolder, rank: int) -> None:
    """Remove the heartbeat of a rank that has ended, and its log where that is empty."""
    with contextlib.suppress(OSError):  # a disk that is gone must not hide how the rank ended
        folder.heartbeat(rank).unlink(missing_ok=True)
        if os.path.getsize(folder.rank_log(rank)) == 0:
            folder.rank_log(rank).unlink()


def _beat(path: Path, is_over: threading.Event) -> None:
    while not is_over.wait(BEAT_S):
        with contextlib.suppress(OSError):  # a disk that is away for a moment
            os.utime(path)  # by the clock of the disk, which is one for all machines


# -- ranks that are silent ---------------------------------------------------------------------------------------------


class Beat(NamedTuple):
    """The process of a rank, and the time of its last heartbeat by the clock of the disk."""

    host: str
    pid: int
    at_s: float


def silent(folder: RunFolder, world_size: int) -> str:
    """A line for each rank that has no heartbeat for `LOOK_S`: where, since when, why; "" for none.

    Returns "" as soon as a failure is on record, which is more precise. A rank that has ended has no file any more.
    """
    before = _beats(folder)
    deadline = time.monotonic() + LOOK_S
    while time.monotonic() < deadline:
        if folder.failure.exists():
            return ""
        time.sleep(0.05)
    after, now = _beats(folder), folder.now_s()
    return "\n".join(
        f"rank {rank} of {world_size} on {beat.host} (pid {beat.pid}) has been silent since "
        f"{datetime.fromtimestamp(beat.at_s):%H:%M:%S}, for {now - beat.at_s:.0f} s: {_state(beat)}"
        for rank, beat in sorted(after.items(), key=lambda item: item[1].at_s)
        if before.get(rank) == beat
    )


def absent(folder: RunFolder, world_size: int) -> str:
    """A line that names the ranks that have never had a heartbeat, which ranks that meet wait for; "" for none."""
    beats = _beats(folder)
    ranks = ", ".join(str(rank) for rank in range(world_size) if rank not in beats)
    if not ranks:
        return ""
    return f"rank {ranks} of {world_size} never came: not started, stopped before its imports, or killed"


def _beats(folder: RunFolder) -> dict[int, Beat]:
    beats = {}
    for rank, path in folder.heartbeats().items():
        # opened, for a network disk may report an old time of a file that is not
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            host, pid = file.read().split()
            beats[rank] = Beat(host, int(pid), os.fstat(file.fileno()).st_mtime)
    return beats


def _state(beat: Beat) -> str:
    if beat.host != socket.gethostname():
        return f"it was killed or is stopped, or {beat.host} is down or cut off"
    try:
        state = Path(f"/proc/{beat.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        state = "Z"
    states = {"T": f"its process is stopped, kill -CONT {beat.pid} would resume it", "Z": "its process is gone"}
    return states.get(state, "its process hangs")


# -- a rank that died --------------------------------------------------------------------------------------------------


def end_of(folder: RunFolder, rank: int, who: str, code: int) -> str:
    """How a process of this machine ended, by its exit code, the number of a signal below zero: a line, then its stack.

    The line names the place in the source, the innermost outside of installed packages, where Python could note it.
    """
    number = signal.Signals(-code)
    line = f"{who} was ended by {number.name} on {socket.gethostname()}"
    if number == signal.SIGKILL:
        line += " (kill -9, or out of memory)"
    try:
        stack = folder.rank_log(rank).read_text(errors="replace").rpartition("Fatal Python error")[2]
    except OSError:
        stack = ""
    # of the thread that got the signal; else of the main thread, which comes last
    current, others = stack.partition("Current thread")[2], stack.rpartition("Thread 0x")[2]
    frames = list(FRAME.finditer((current or others).partition("\n\n")[0]))
    if not frames:
        return f"{line}\n"
    installed = ("site-packages", sysconfig.get_path("stdlib"))
    of_user = [frame for frame in frames if not any(part in frame["path"] for part in installed)]
    place = (of_user or frames)[0]
    lines = [f"{line}, in {place['path']}:{place['line']} ({place['function']})", "Most recent call first:"]
    return "\n".join([*lines, *(frame[0] for frame in frames)]) + "\n"

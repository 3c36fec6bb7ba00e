"""Signs of life of the ranks of a run, and what is left of one that died: a file for each, while it computes.

A rank that is killed, frozen or cut off cannot say so, and the others hear of it as of a broken connection. So every
rank touches a file of its own once a second, by a thread, and Python writes into the log of the rank where it was when
a signal such as SIGSEGV ends it. Whoever is left reads them: other ranks, the parent.
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
LOOK_S = 5.0  # a rank that does not beat for so long is silent
MOST_TOLD = 4  # silent ranks in a message
FRAME = re.compile(r'^ +File "(?P<path>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)


@contextlib.contextmanager
def shown(folder: RunFolder, rank: int) -> Iterator[None]:
    """Show that this rank lives, and where it dies; nothing is left of either when the block ends, however it does."""
    beat = folder.rank_beat(rank)
    _begin(beat)
    is_over = threading.Event()
    thread = threading.Thread(target=_beat, args=(beat, is_over), daemon=True)
    thread.start()
    was_enabled = faulthandler.is_enabled()
    try:
        with open(folder.rank_log(rank), "ab") as file:
            faulthandler.enable(file)
            try:
                yield
            finally:
                faulthandler.disable()
                if was_enabled:
                    faulthandler.enable(2)  # where Python and pytest have it
    finally:
        is_over.set()
        thread.join()
        forget(folder, rank)


def forget(folder: RunFolder, rank: int) -> None:
    """Remove what a rank that has ended showed of itself, and its log where that is empty."""
    log = folder.rank_log(rank)
    with contextlib.suppress(OSError):  # there is none, or the disk is gone, whose fault is told elsewhere
        if log.stat().st_size == 0:
            log.unlink()
    with contextlib.suppress(OSError):
        folder.rank_beat(rank).unlink()
    with contextlib.suppress(OSError):  # others are still there
        folder.ranks.rmdir()


def _begin(beat: Path) -> None:
    while True:
        beat.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another rank has just left, and the folder with it
            beat.write_text(f"{socket.gethostname()} {os.getpid()}\n")
            return


def _beat(path: Path, is_over: threading.Event) -> None:
    while not is_over.wait(BEAT_S):
        with contextlib.suppress(OSError):  # a disk that is away for a moment
            os.utime(path)  # by the clock of the disk, which is one for all machines


# -- ranks that are silent ---------------------------------------------------------------------------------------------


class Beat(NamedTuple):
    """What a rank shows: its process, and when that last gave a sign, by the clock of the disk."""

    host: str
    pid: int
    at_s: float


def silent(folder: RunFolder) -> dict[int, Beat]:
    """The ranks that give no sign for `LOOK_S`; none as soon as a failure is on record, which tells more.

    Those that left by themselves have no file any more, and are not silent.
    """
    before = _beats(folder)
    deadline = time.monotonic() + LOOK_S
    while time.monotonic() < deadline:
        if folder.failure.exists():
            return {}
        time.sleep(0.05)
    after = _beats(folder)
    return {rank: beat for rank, beat in after.items() if before.get(rank) == beat}


def told(folder: RunFolder, ranks: dict[int, Beat], world_size: int) -> str:
    """Which ranks are silent, where, since when and why, as far as that can be seen from this machine."""
    now = folder.now_s()
    lines = [
        f"rank {rank} of {world_size} on {beat.host} (pid {beat.pid}) has been silent since "
        f"{datetime.fromtimestamp(beat.at_s):%H:%M:%S}, for {now - beat.at_s:.0f} s: {_state(beat)}"
        for rank, beat in sorted(ranks.items(), key=lambda item: item[1].at_s)[:MOST_TOLD]
    ]
    more = len(ranks) - len(lines)
    return "\n".join([*lines, *([f"and {more} more"] if more else [])])


def absent(folder: RunFolder, world_size: int) -> list[int]:
    """Ranks that have shown nothing of their life: while ranks meet for the first time, those that never came."""
    beats = _beats(folder)
    return [rank for rank in range(world_size) if rank not in beats]


def told_absent(ranks: list[int], world_size: int) -> str:
    """Which ranks never came, in a line; empty where all did."""
    if not ranks:
        return ""
    named, num_more = ", ".join(map(str, ranks[:MOST_TOLD])), len(ranks[MOST_TOLD:])
    more = f" and {num_more} more" if num_more else ""
    return f"rank {named}{more} of {world_size} never came: not started, stopped before its imports, or killed"


def _beats(folder: RunFolder) -> dict[int, Beat]:
    beats = {}
    for path in folder.ranks.glob("*.beat"):
        # opened, for a network disk may tell an old time of a file that is not
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            host, pid = file.read().split()
            beats[int(path.stem)] = Beat(host, int(pid), os.fstat(file.fileno()).st_mtime)
    return beats


def _state(beat: Beat) -> str:
    if beat.host != socket.gethostname():
        return f"it was killed or is stopped, or {beat.host} is down or cut off"
    try:
        state = Path(f"/proc/{beat.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "its process is gone"
    if state == "T":
        return f"its process is stopped, kill -CONT {beat.pid} would let it go on"
    return "its process is gone" if state == "Z" else "its process hangs"


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

"""Heartbeats of ranks, and reports of how a process died.

A rank that is killed, frozen or disconnected cannot report it. Other ranks only notice a broken
connection or a timeout. So each rank touches a file every second, and `faulthandler` writes the
stack of a fatal signal such as SIGSEGV to the log of the rank. Other ranks and the parent read
both.
"""

import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from lockstep.runs.files import open_regular, open_to_append
from lockstep.runs.folder import RunFolder

HEARTBEAT_S = 1.0
HEARTBEAT_TIMEOUT_S = 5.0  # A rank without a heartbeat for this long is silent.
MAX_STACK_BYTES = 2**20  # bytes at the end of a log: Python writes 100 frames of each thread


@contextmanager
def write_heartbeats(folder: RunFolder, rank: int) -> Iterator[None]:
    """Write heartbeats of this rank, and fatal stacks to its log, until the block ends."""
    heartbeat = folder.heartbeat(rank)
    heartbeat.write_text(f"{socket.gethostname()} {os.getpid()}\n")
    is_over = threading.Event()
    thread = threading.Thread(target=_touch, args=(heartbeat, is_over), daemon=True)
    thread.start()
    with ExitStack() as stack:  # The callbacks run in the opposite order.
        stack.callback(forget, folder, rank)
        stack.callback(thread.join)
        stack.callback(is_over.set)
        faulthandler.enable(stack.enter_context(open_to_append(folder.rank_log(rank))))
        stack.callback(faulthandler.disable)
        yield


def forget(folder: RunFolder, rank: int) -> None:
    """Remove the heartbeat of a rank that has ended, and its log if that is empty."""
    with suppress(OSError):  # A lost disk must not hide how the rank ended.
        folder.heartbeat(rank).unlink(missing_ok=True)
        if os.path.getsize(folder.rank_log(rank)) == 0:
            folder.rank_log(rank).unlink()


def _touch(path: Path, is_over: threading.Event) -> None:
    while not is_over.wait(HEARTBEAT_S):
        with suppress(OSError):  # A network disk may be unavailable for a moment.
            # The time is that of the clock of the disk, which is the same for all machines.
            os.utime(path)


def silent_ranks(folder: RunFolder, world_size: int) -> str:
    """Report each rank whose last heartbeat is too old, or return "" if there is none.

    There is one line per rank, with its host, the time since when, and possible reasons. Returns ""
    immediately when a failure is recorded, which is more precise. Ranks that have ended have no
    file.
    """
    before = _heartbeats(folder)
    deadline = time.monotonic() + HEARTBEAT_TIMEOUT_S
    while time.monotonic() < deadline:
        if folder.failure.exists():
            return ""
        time.sleep(0.05)
    silent, now_s = before & _heartbeats(folder), folder.now_s()
    return "\n".join(
        f"rank {rank} of {world_size} on {host} (pid {pid}) "
        f"has been silent since {datetime.fromtimestamp(at_s):%H:%M:%S}, "
        f"for {now_s - at_s:.0f} s: it was killed, is stopped or hangs, "
        f"or {host} is down or unreachable"
        for at_s, rank, host, pid in sorted(silent)
    )


def absent_ranks(folder: RunFolder, world_size: int) -> str:
    """Report the ranks that never had a heartbeat, or return "" if there are none."""
    present_ranks = {rank for _, rank, _, _ in _heartbeats(folder)}
    ranks = ", ".join(str(rank) for rank in range(world_size) if rank not in present_ranks)
    if not ranks:
        return ""
    return (
        f"rank {ranks} of {world_size} did not start: not launched, stopped during its imports, "
        "or killed"
    )


def _heartbeats(folder: RunFolder) -> set[tuple[float, int, str, int]]:
    """Return the time by the clock of the disk, rank, host and process of each last heartbeat."""
    heartbeats: set[tuple[float, int, str, int]] = set()
    for rank, path in folder.heartbeats().items():
        # The file is opened, because a network disk may report an old time for a file that is not
        # open.
        with suppress(OSError, ValueError), open(path, opener=open_regular) as file:
            host, pid = file.read(1000).split()
            heartbeats.add((os.fstat(file.fileno()).st_mtime, rank, host, int(pid)))
    return heartbeats


def end_of(folder: RunFolder, rank: int, process_name: str, code: int) -> str:
    """Report how a process of this machine was ended by a signal.

    The report is a line, followed by the stack if Python could write it. `code` is the negative
    number of the signal. The line names the innermost source line outside installed packages.
    """
    from lockstep.system import tracebacks

    number = signal.Signals(-code)
    line = f"{process_name} was ended by {number.name} on {socket.gethostname()}"
    if number == signal.SIGKILL:
        line += " (kill -9, or out of memory)"
    try:
        with open(folder.rank_log(rank), "rb", opener=open_regular) as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - MAX_STACK_BYTES))
            output = log.read(MAX_STACK_BYTES).decode(errors="replace")
    except OSError:
        output = ""
    stack = output.rpartition("Fatal Python error")[2]
    # This is the stack of the thread that received the signal, else that of the main thread, which
    # comes last.
    thread_stack = stack.partition("Current thread")[2] or stack.rpartition("Thread 0x")[2]
    stack = thread_stack.partition("\n\n")[0]
    frames = list(tracebacks.FRAME.finditer(stack))
    if not frames:
        return f"{line}\n"
    inner_frame = (tracebacks.project_frames(stack) or frames)[0]
    lines = [f"{line}, in {tracebacks.frame_location(inner_frame)}", "Most recent call first:"]
    return "\n".join([*lines, *(frame[0] for frame in frames)]) + "\n"

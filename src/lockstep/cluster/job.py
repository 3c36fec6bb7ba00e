"""Inside a job: its run is trained as by any other command, and its exit code decides whether the job is requeued.

A signal -> the stop flag of all ranks -> a checkpoint between two steps -> exit code REQUEUE of rank 0 -> the script of
the job, which is outside of any container, calls `scontrol requeue` -> the same folder. Lightning requeues on SIGUSR1
and submitit on SIGUSR2, both inside signal handlers: neither does here.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from lockstep.cluster import record
from lockstep.runs.folder import EXIT_CONFIG, EXIT_STOPPED, GRACE_S, RunFolder
from lockstep.runs.naming import quoted
from lockstep.system.hardware import num_visible_gpus
from lockstep.system.launcher import outer_world
from lockstep.system.process import leave
from lockstep.system.signals import STOP_SIGNALS
from lockstep.system.wording import plural

HELD = (*STOP_SIGNALS, signal.SIGUSR2)
# the first words of every process of a job: signals wait until the run can take them
HOLD = (
    "import os, signal, sys; "
    f"signal.pthread_sigmask(signal.SIG_BLOCK, [{', '.join(f'signal.{number.name}' for number in HELD)}]); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
REQUEUE = 76  # instead of EXIT_STOPPED where the scheduler stopped the run; nobody but the script of the job sees it
# signals by which the scheduler stops a run, and the reason in its status: sbatch asks for SIGUSR1 as the warning
REASONS = {
    "SIGUSR1": "time limit: the job is requeued, unless the limit has passed already",
    "SIGTERM": "SIGTERM: the job is requeued if it was preempted, not if it was cancelled",
}


class Settings(NamedTuple):
    """What a job must know before its record is there. In the background of a machine nothing is requeued."""

    task: str
    max_requeues: int
    gpus_per_node: int
    is_slurm: bool = True


def run(path: str, settings: tuple[str, int, int]) -> NoReturn:
    """What submitit calls, in every task of srun. Exits with the code of the run."""
    signal.signal(signal.SIGCONT, signal.SIG_DFL)  # SLURM sends it when it ends a job; submitit warns of it, twice
    leave(lambda: work(RunFolder(Path(path)), Settings(*settings)))


def work(folder: RunFolder, settings: Settings) -> int:
    """Train the run of a job. Returns the exit code of this process."""
    take_signals()
    world = outer_world(os.environ)
    is_first = world is None or world.rank == 0
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    reason = _refusal(folder, settings, restarts)
    code = EXIT_STOPPED if reason else _trained(folder, settings)
    if is_first and reason:
        _update(folder, state="stopped", reason=reason, exit_code=code)
        print(reason, flush=True)
    elif is_first and code == EXIT_STOPPED:
        code, reason = after_stop(folder, settings, restarts)
        _update(folder, reason=reason, exit_code=None if code == REQUEUE else code)
        print(reason, flush=True)
    elif is_first:
        _update(folder, exit_code=code)
    elif code == EXIT_STOPPED:
        return 0  # the code of rank 0 counts
    if code and world is not None and world.world_size > 1:
        time.sleep(GRACE_S)  # srun kills the others, which end by themselves, when one exits with a code
    return code


def _update(folder: RunFolder, **fields: Any) -> None:
    """Change some fields of the status, unless another process has the run: then it is that one's."""
    if not folder.is_locked():
        folder.update_status(**fields)


def take_signals() -> None:
    """Replace submitit's handlers by one that does nothing; blocked signals stay so until the run takes them.

    A handler, for to ignore a signal is to forget one that waits.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _pass)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])


def _pass(number: int, frame: FrameType | None) -> None:
    """Handle a signal by doing nothing."""


def _trained(folder: RunFolder, settings: Settings) -> int:
    error = _gpu_error(settings)
    if error:
        folder.record_failure(f"config error: {error}\n")
        _update(folder, state="failed", reason=error)
        print(f"config error: {error}", file=sys.stderr, flush=True)
        return EXIT_CONFIG
    from lockstep.launch import runner

    return runner.do(folder.path, settings.task)


def _gpu_error(settings: Settings) -> str:
    count = num_visible_gpus() if settings.gpus_per_node else 0
    if count >= settings.gpus_per_node:
        return ""
    return (
        f"cluster.gpus_per_node={settings.gpus_per_node}, but SLURM shows {plural(count, 'GPU')} on "
        f"{socket.gethostname()}: choose another partition, or strategy=cpu"
    )


# -- what becomes of the job ------------------------------------------------------------------------------------------


def _refusal(folder: RunFolder, settings: Settings, restarts: int) -> str:
    """Why a job that SLURM has started is not wanted any more."""
    if record.is_cancelled(folder):
        return "cancelled"
    if settings.is_slurm and restarts > settings.max_requeues and not folder.read_summary():
        return _over_limit(folder, settings, restarts)
    return ""


def _over_limit(folder: RunFolder, settings: Settings, restarts: int) -> str:
    return (
        f"the job was requeued {plural(restarts, 'time')}, and cluster.max_requeues={settings.max_requeues} allows no "
        f"more: continue with lockstep jobs requeue {quoted(folder.path)}"
    )


def after_stop(folder: RunFolder, settings: Settings, restarts: int) -> tuple[int, str]:
    """Exit code of a job whose run has stopped, and the reason for people. Never requeues what a person stopped."""
    status = folder.read_status()
    reason, number = status.get("reason", ""), status.get("signal")
    waiting = signal.sigpending() & set(STOP_SIGNALS)
    if waiting:  # no run took it: the job waited for another process, whose status this is
        number = min(waiting).name
        reason = f"signal {number}"
    if record.is_cancelled(folder):
        return EXIT_STOPPED, "cancelled"
    if not settings.is_slurm or number not in REASONS:
        return EXIT_STOPPED, reason
    if restarts >= settings.max_requeues:
        return EXIT_STOPPED, _over_limit(folder, settings, restarts)
    return REQUEUE, REASONS[number]


if __name__ == "__main__":  # in the background of this machine: python -m lockstep.cluster.job FOLDER TASK
    path, task = sys.argv[1:]
    leave(lambda: work(RunFolder(Path(path).resolve()), Settings(task, 0, 0, is_slurm=False)))

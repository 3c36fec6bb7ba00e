"""Inside a job: its run is trained as by any other command, and afterwards one mechanism decides whether it goes on.

A signal -> the stop flag of all ranks -> a checkpoint between two steps -> `scontrol requeue` by rank 0 -> the same
folder. Lightning requeues on SIGUSR1 and submitit on SIGUSR2, both inside signal handlers: neither is let.
"""

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from lockstep.cluster import record, scheduler
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
REQUEST = "LOCKSTEP_REQUEUE"  # names the file that asks the script of the job for a requeue, where scontrol is not
TIME_LIMIT = signal.SIGUSR1.name  # what sbatch is told to warn with
PREEMPTION = signal.SIGTERM.name
ASK_TIMES, ASK_EVERY_S = 3, 1.0  # whether a requeue was heard, within the seconds that SLURM leaves a job it ends


class Settings(NamedTuple):
    """What a job must know before its record is there."""

    task: str
    max_requeues: int
    gpus_per_node: int


def run(path: str, settings: tuple[str, int, int]) -> NoReturn:
    """What submitit calls, in every task of srun. Leaves with the exit code of the run."""
    signal.signal(signal.SIGCONT, signal.SIG_DFL)  # SLURM sends it when it ends a job; submitit warns of it, twice
    leave(lambda: work(RunFolder(Path(path)), Settings(*settings), own_id(os.environ)))


def own_id(environ: Mapping[str, str]) -> str:
    """The id of the job around this process; the bare number of the last task of an array means all tasks of it."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ["SLURM_JOB_ID"]


def work(folder: RunFolder, settings: Settings, job: str | None) -> int:
    """Train the run of a job, and requeue the job if that is due. Returns the exit code of this process.

    `job` is the id of a job of SLURM, None in the background of a machine, which may be inside of another job.
    """
    take_signals()
    world = outer_world(os.environ)
    is_first = world is None or world.rank == 0
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0) if job else 0
    refusal = _refusal(folder, settings, restarts)
    if refusal:
        if is_first:
            _tell(folder, state="stopped", reason=refusal, exit_code=EXIT_STOPPED)
            print(refusal, flush=True)
        return EXIT_STOPPED if is_first else 0
    code = _trained(folder, settings)
    if code == EXIT_STOPPED and job:
        if not is_first:
            return 0  # srun ends all others when one leaves with another code, and rank 0 has work to do
        reason = next_of(folder, settings, restarts, job)
        goes_on = reason.startswith((REQUEUED, BY_SLURM))
        _tell(folder, reason=reason, exit_code=None if goes_on else code)
        print(reason, flush=True)
        if reason.startswith(REQUEUED):
            _requeue(folder, job, restarts)
        return code
    if is_first:
        _tell(folder, exit_code=code)
    elif code == EXIT_STOPPED:
        return 0
    if code and world is not None and world.world_size > 1:
        time.sleep(GRACE_S)  # the others notice a failure themselves, and leave with their own code
    return code


def _tell(folder: RunFolder, **fields: Any) -> None:
    """Change some fields of the status, unless another process has the run: then it is that one's."""
    if not folder.is_locked():
        folder.update_status(**fields)


def take_signals() -> None:
    """Replace submitit's handlers by one that does nothing; what is held back stays so until the run takes it.

    A handler, for to ignore a signal is to forget one that waits.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _pass)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])


def _pass(number: int, frame: FrameType | None) -> None:
    """Handle a signal by doing nothing."""


def _trained(folder: RunFolder, settings: Settings) -> int:
    faults = _gpu_faults(settings)
    if faults:
        folder.record_failure(f"config error: {faults}\n")
        _tell(folder, state="failed", reason=faults)
        print(f"config error: {faults}", file=sys.stderr, flush=True)
        return EXIT_CONFIG
    from lockstep.launch import runner

    return runner.main([str(folder.path), "--task", settings.task])


def _gpu_faults(settings: Settings) -> str:
    count = num_visible_gpus() if settings.gpus_per_node else 0
    if count >= settings.gpus_per_node:
        return ""
    return (
        f"cluster.gpus_per_node={settings.gpus_per_node}, but SLURM shows {plural(count, 'GPU')} on "
        f"{socket.gethostname()}: choose another partition, or strategy=cpu"
    )


# -- what becomes of the job ------------------------------------------------------------------------------------------

REQUEUED = "requeued"
BY_SLURM = "preempted: SLURM has requeued the job"


def _refusal(folder: RunFolder, settings: Settings, restarts: int) -> str:
    """Why a job that SLURM has started is not wanted any more."""
    if record.is_cancelled(folder):
        return "cancelled"
    if restarts > settings.max_requeues and not folder.read_summary():
        return _over_limit(folder, settings, restarts)
    return ""


def _over_limit(folder: RunFolder, settings: Settings, restarts: int) -> str:
    return (
        f"the job was requeued {plural(restarts, 'time')}, and cluster.max_requeues={settings.max_requeues} allows no "
        f"more: go on with lockstep jobs requeue {quoted(folder.path)}"
    )


def next_of(folder: RunFolder, settings: Settings, restarts: int, job: str) -> str:
    """What becomes of a job whose run has stopped, as a reason for people; it begins with `REQUEUED` if that is due.

    Nobody who stopped the run by hand gets it back. Where SLURM has decided already, it is left to it.
    """
    status, held = folder.read_status(), _held_back()
    # a signal that no run took came while the job waited for another process, whose status this is
    reason, number = (f"signal {held}", held) if held else (status.get("reason", ""), status.get("signal"))
    if record.is_cancelled(folder):
        return "cancelled"
    if number not in (TIME_LIMIT, PREEMPTION):
        return reason
    if scheduler.is_told_here():
        try:
            says = scheduler.show(job)
        except ValueError as error:
            return f"{reason}, not requeued: {error}"
        if int(says.get("Restarts", 0)) > restarts:
            return BY_SLURM
        is_over = says.get("JobState") != "RUNNING"
        if is_over and not (number == TIME_LIMIT and says.get("Reason") == "TimeLimit"):
            return f"{reason}, and SLURM has ended the job"
    elif number == PREEMPTION:  # or a cancelled job would come back
        return f"{reason}: without scontrol in the container, only SLURM itself requeues the job"
    if restarts >= settings.max_requeues:
        return _over_limit(folder, settings, restarts)
    return f"{REQUEUED}: {'time limit' if number == TIME_LIMIT else 'preempted'}"


def _held_back() -> str | None:
    """The name of a stop signal that waits, None where there is none."""
    waiting = signal.sigpending() & set(STOP_SIGNALS)
    return next((number.name for number in STOP_SIGNALS if number in waiting), None)


def _requeue(folder: RunFolder, job: str, restarts: int) -> None:
    """Ask SLURM to start this job again, which ends this process, or the script of the job to do so.

    SLURM ends scontrol, too, for it is a process of the job. So what became of the job is asked when scontrol fails.
    """
    try:
        if scheduler.is_told_here():
            scheduler.requeue(job)
        else:
            Path(os.environ[REQUEST]).touch()
        return
    except (OSError, ValueError) as error:
        failure = error
    reason, code = f"not requeued: {failure}; go on with lockstep jobs requeue {quoted(folder.path)}", EXIT_STOPPED
    if scheduler.is_told_here():
        try:
            if _has_restarted(job, restarts):
                return
        except ValueError as error:
            reason, code = f"perhaps not requeued: {failure}, and {error}; see lockstep jobs show {job}", None
    _tell(folder, reason=reason, exit_code=code)
    print(reason, flush=True)


def _has_restarted(job: str, restarts: int) -> bool:
    """Whether SLURM has counted another start of a job by now, or soon does. Raises ValueError where it is silent."""
    for _ in range(ASK_TIMES):
        if int(scheduler.show(job).get("Restarts", 0)) > restarts:
            return True
        time.sleep(ASK_EVERY_S)
    return False


def main(words: list[str]) -> int:
    """A job in the background of this machine: `python -m lockstep.cluster.job FOLDER TASK`."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.cluster.job")
    parser.add_argument("folder", type=Path)
    parser.add_argument("task", choices=record.TASKS)
    arguments = parser.parse_args(words)
    return work(RunFolder(arguments.folder.resolve()), Settings(arguments.task, 0, 0), None)


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))

"""The process of a job, which trains its run or executes its command.

It exits with a code that decides whether the job is requeued. A signal sets the stop flag of all
ranks, which save a checkpoint between two steps. Rank 0 then exits with code REQUEUE. The script of
the job, which is outside of any container, calls `scontrol requeue`, and the job continues in the
same folder. Lightning requeues on SIGUSR1 and submitit on SIGUSR2, both inside signal handlers.
Neither does so here.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from lockstep.cluster import record
from lockstep.cluster.record import JobRecord
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, EXIT_STOPPED, GRACE_S, RunFolder
from lockstep.runs.naming import quote_path
from lockstep.system.hardware import num_visible_gpus
from lockstep.system.launcher import PROJECT, outer_world
from lockstep.system.process import leave
from lockstep.system.signals import STOP_SIGNALS
from lockstep.system.text import plural

BLOCKED_SIGNALS = (*STOP_SIGNALS, signal.SIGUSR2)
# This starts every process of a job. It blocks the signals until the run can handle them.
HOLD = (
    "import os, signal, sys; "
    "signal.pthread_sigmask(signal.SIG_BLOCK, "
    f"[{', '.join(f'signal.{number.name}' for number in BLOCKED_SIGNALS)}]); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
# This replaces EXIT_STOPPED if the scheduler stopped the run. Only the script of the job sees it.
REQUEUE = 76
# The scheduler stops a run by these signals, and the status of the run contains the reason. sbatch
# sends SIGUSR1 as the warning.
REASONS = {
    "SIGUSR1": "time limit: the job is requeued, unless the limit has passed already",
    "SIGTERM": "SIGTERM: the job is requeued if it was preempted, not if it was cancelled",
}
MAX_RANK_WAIT_S = 60.0  # within the default of cluster.warn_s, 120 s
RECORD_S = 300.0  # A network file system may show a new file a minute late.


def run_job(path: str) -> NoReturn:
    """Run a SLURM job. submitit calls this in every task of srun.

    Exits with the exit code of the work.
    """
    import submitit

    # SLURM sends it when it ends a job, and submitit warns about it twice.
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    leave(lambda: work(RunFolder(Path(path)), submitit.JobEnvironment().job_id))


def work(folder: RunFolder, job_id: str) -> int:
    """Train the run of a job, or execute its command, and return the exit code of this process."""
    take_signals()
    job = _record(folder, job_id)
    world = outer_world(os.environ)
    is_first = world is None or world.rank == 0
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    reason = _refusal(folder, job, restarts)
    code = EXIT_STOPPED if reason else _do(folder, job, is_first=is_first)
    if is_first and reason:
        _update(folder, state="stopped", reason=reason, exit_code=code)
        print(reason, flush=True)
    elif is_first and code == EXIT_STOPPED:
        code, reason = _after_stop(folder, job, restarts)
        _update(folder, reason=reason, exit_code=None if code == REQUEUE else code)
        print(reason, flush=True)
    elif is_first:
        _update(folder, exit_code=code)
    elif code == EXIT_STOPPED:
        return 0  # The code of rank 0 counts.
    if code and world is not None and world.world_size > 1:
        # Let the other ranks end first: srun kills them as soon as one exits with a code.
        deadline = time.monotonic() + MAX_RANK_WAIT_S
        while code == REQUEUE and folder.heartbeats() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(GRACE_S)
    return code


def _record(folder: RunFolder, job_id: str) -> JobRecord:
    """Return the record of this job, which is written when its id is known.

    Raises TimeoutError if it is missing.
    """
    deadline = time.monotonic() + RECORD_S
    while (job := record.read(folder)) is None or job.id != job_id:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{folder.job_file} is not of job {job_id}, whose submission was interrupted"
            )
        time.sleep(0.2)
    return job


def _update(folder: RunFolder, **fields: Any) -> None:
    """Change fields of the status, unless another process has the run and writes it."""
    if not folder.is_locked():
        folder.update_status(**fields)


def take_signals() -> None:
    """Ignore SIGUSR2, and give stop signals a handler that does nothing.

    They replace the handlers of submitit. Stop signals stay blocked until the run handles them.
    """
    for number in STOP_SIGNALS:
        # Ignoring a signal would discard a pending one.
        signal.signal(number, lambda number, frame: None)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])


def _do(folder: RunFolder, job: JobRecord, *, is_first: bool) -> int:
    needs_gpus = job.engine == "slurm" and job.gpus_per_node > 0
    if needs_gpus and num_visible_gpus() < job.gpus_per_node:
        error = (
            f"cluster.gpus_per_node={job.gpus_per_node}, but SLURM shows "
            f"{plural(num_visible_gpus(), 'GPU')} on {socket.gethostname()}: "
            "choose another partition, or strategy=cpu"
        )
        folder.record_failure(f"config error: {error}\n")
        _update(folder, state="failed", reason=error)
        print(f"config error: {error}", file=sys.stderr, flush=True)
        return EXIT_CONFIG
    if job.command:
        return _execute(folder, job, is_first=is_first)
    from lockstep.launch import prepared_run

    return prepared_run.run_prepared(folder.path, job.task)


def _execute(folder: RunFolder, job: JobRecord, *, is_first: bool) -> int:
    """Execute the command of a job, and forward signals to it.

    Returns its exit code, which is EXIT_STOPPED after a signal.
    """
    signal_numbers = []
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: FrameType | None) -> None:
        signal_numbers.append(number)
        if process is not None:
            process.send_signal(number)

    for number in STOP_SIGNALS:
        signal.signal(number, forward)
    # The process keeps the signals blocked until it has handlers. It also keeps the lock of a
    # background job.
    process = subprocess.Popen(
        [sys.executable, "-m", "lockstep", *job.command],
        close_fds=False,
        env={**os.environ, PROJECT: job.code},
    )
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    code = process.wait()
    signal_name = signal.Signals(signal_numbers[0]).name if signal_numbers else None
    if signal_numbers and code in (-signal_numbers[0], 128 + signal_numbers[0]):
        code = EXIT_STOPPED
    elif code not in (0, EXIT_STOPPED):
        end = f"exited with code {code}"
        if code < 0:
            end = f"was ended by {signal.Signals(-code).name}"
        folder.record_failure(f"the command {end} on {socket.gethostname()}, see the log\n")
        code = max(code, EXIT_FAILED)
    if is_first:
        cause = folder.failure_cause()
        if code == EXIT_STOPPED and cause:  # Another task failed, and srun stopped this one.
            code = EXIT_FAILED
        state = {0: "finished", EXIT_STOPPED: "stopped"}.get(code, "failed")
        reason = cause or (f"signal {signal_name}" if signal_name else "")
        _update(folder, state=state, reason=reason, signal=signal_name)
    return code


def _refusal(folder: RunFolder, job: JobRecord, restarts: int) -> str:
    """Return the reason not to train in a job that SLURM has started again.

    It is empty if there is none.
    """
    if job.cancelled:
        return "cancelled"
    if restarts and not job.is_resumable:
        return "started again by SLURM: a benchmark is not resumed"
    is_over_limit = job.engine == "slurm" and restarts > job.cluster["max_requeues"]
    if is_over_limit and not folder.read_summary():
        return _over_limit(folder, job, restarts)
    return ""


def _over_limit(folder: RunFolder, job: JobRecord, restarts: int) -> str:
    return (
        f"requeued {plural(restarts, 'time')}, the limit is "
        f"cluster.max_requeues={job.cluster['max_requeues']}: "
        f"resume with lockstep jobs requeue {quote_path(folder.path)}"
    )


def _after_stop(folder: RunFolder, job: JobRecord, restarts: int) -> tuple[int, str]:
    """Return the exit code and the reason of a job whose run has stopped.

    A run that a person stopped is never requeued.
    """
    status = folder.read_status()
    reason, number = status.get("reason", ""), status.get("signal")
    signals = signal.sigpending() & set(STOP_SIGNALS)
    if signals:  # The job waited for another process that has the run, and that wrote the status.
        number = min(signals).name
        reason = f"signal {number}"
    if folder.read_job().get("cancelled"):
        return EXIT_STOPPED, "cancelled"
    if job.engine != "slurm" or number not in REASONS or not job.is_resumable:
        return EXIT_STOPPED, reason
    if restarts >= job.cluster["max_requeues"]:
        return EXIT_STOPPED, _over_limit(folder, job, restarts)
    return REQUEUE, REASONS[number]


# This serves the background of this machine: python -m lockstep.cluster.job FOLDER ID
if __name__ == "__main__":
    path, own_id = sys.argv[1:]
    leave(lambda: work(RunFolder(Path(path).resolve()), own_id))

"""A process that computes: its signals, its task, and the record of its end."""

import gc
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TextIO

from lockstep.config import build
from lockstep.config.errors import PREFIX, ConfigError, Error, Refused, errors_of, report
from lockstep.runs import heartbeat
from lockstep.runs.files import open_to_append
from lockstep.runs.folder import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_STOPPED,
    GRACE_S,
    RunFolder,
)
from lockstep.runs.naming import display_path
from lockstep.system.hardware import num_cores
from lockstep.system.launcher import World, outer_world
from lockstep.system.libraries import lazy, silence_libraries
from lockstep.system.output import print_error
from lockstep.system.redaction import redact
from lockstep.system.signals import Ended, SignalFlag, report_end, restore_signals

# Exit codes of a training by its state. A later signal does not change them.
ENDS = {"finished": 0, "stopped": EXIT_STOPPED, "pruned": EXIT_STOPPED}
# A task takes a run folder, the world, the signals of this process, and options. It returns the
# exit code.
Task = Callable[..., int]


def train(
    folder: RunFolder, world: World | None, flag: SignalFlag, *, command: str, has_test: bool
) -> int:
    from lockstep.training.train import train

    return train(folder, world, flag, command=command, has_test=has_test)


def test(folder: RunFolder, world: World | None, flag: SignalFlag) -> int:
    from lockstep.training.train import test

    return test(folder, world, flag)


class Job(NamedTuple):
    """A task on a run folder, with its plain options.

    Only the function of the task imports torch, in the process that computes. `hydra` is Hydra's
    configuration, or None without one.
    """

    task: Task
    folder: RunFolder
    options: dict[str, Any]
    hydra: Any = None

    @property
    def ends_at_first_signal(self) -> bool:
        """True for a task without a checkpoint to save."""
        return self.task not in (train, test)


def import_training() -> None:
    """Import torch, Lightning and the modules of the default training.

    The garbage collector would take a sixth of that time.
    """
    gc.disable()
    with lazy():
        import lockstep.data.loader
        import lockstep.training.train  # noqa: F401
        from lockstep.callbacks import SplitTensorBoardLogger  # noqa: F401
        from lockstep.data import digits  # noqa: F401
        from lockstep.models import ResNet18  # noqa: F401
        from lockstep.tasks import Classification  # noqa: F401
    gc.enable()


def take_job(job: Job, listener: socket.socket | None, *, is_parallel: bool) -> int:
    """Run the job in a worker. Rank 0 opens the store on `listener`."""
    world = outer_world(os.environ) if is_parallel else None
    if world is not None and listener is not None:
        world = replace(world, listener=listener.detach())
    return run_task(job, world, SignalFlag(has_parent=True, ends=job.ends_at_first_signal))


def run_here(job: Job, world: World | None, flag: SignalFlag | None = None) -> int:
    """Run the job in this process, and return the exit code.

    `flag` has the signals that were received before.
    """
    flag = flag or SignalFlag(ends=job.ends_at_first_signal)
    with restore_signals():
        code = run_task(job, world, flag)
        if code in (EXIT_FAILED, EXIT_CONFIG) and (world is not None or not refusal_errors(job)):
            show_failure(job)
        elif flag.received and job.ends_at_first_signal and code == 128 + flag.received:
            report_end(flag.received)
        return code


def run_task(job: Job, world: World | None, flag: SignalFlag) -> int:
    """Run the task, and return the exit code.

    Writes the traceback of a failure to failure.txt and to the log of the rank.
    """
    rank, world_size = (world.rank, world.world_size) if world else (0, 1)
    lost_ranks = ""
    try:
        flag.install()
        # Gloo aborts if foreign connections exhaust the open files.
        if world and sys.platform == "linux":
            max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))
        with heartbeat.write_heartbeats(job.folder, rank):
            import_training()
            _prepare_libraries()
            if job.hydra is not None:
                build.use_hydra(job.hydra)
            try:
                return job.task(job.folder, world, flag, **job.options)
            except Exception as error:
                # This is found while this rank still has a heartbeat.
                lost_ranks = _missing_ranks(error, job.folder, world_size)
                raise
    except Ended as ended:
        return 128 + ended.args[0]
    except ConfigError as error:
        job.folder.record_failure(report(error))
        return EXIT_CONFIG
    # This is the border of the process, where every error is recorded.
    except BaseException as error:
        if flag.aborted_by:  # Lightning turns KeyboardInterrupt into sys.exit(1).
            return end_aborted(job, flag.aborted_by, updates_status=rank == 0)
        failure = redact(f"rank {rank} of {world_size} failed:\n{traceback.format_exc()}")
        try:
            if lost_ranks:
                job.folder.record_failure(
                    f"{lost_ranks}\nrank {rank} of {world_size} waited for it: {error}\n",
                )
            job.folder.record_failure(f"{error}\n" if isinstance(error, Refused) else failure)
            with open_to_append(job.folder.rank_log(rank)) as log:
                log.write(failure.encode(errors="backslashreplace"))
        except OSError:  # `show_failure` reports it.
            if not isinstance(error, Refused):
                print_error(failure)
        return EXIT_FAILED


def _missing_ranks(error: BaseException, folder: RunFolder, world_size: int) -> str:
    """Describe the ranks that did not join. The text is empty for other errors.

    If one of them failed first, wait for its record.
    """
    if world_size == 1:
        return ""
    from lockstep.distributed.collectives import FailedElsewhere, is_lost_rank, is_missing_rank

    if isinstance(error, FailedElsewhere):
        folder.await_failure(GRACE_S)
    lost_ranks = heartbeat.silent_ranks(folder, world_size) if is_lost_rank(error) else ""
    if not lost_ranks and is_missing_rank(error) and not folder.failure.exists():
        return heartbeat.absent_ranks(folder, world_size)
    return lost_ranks


def _prepare_libraries() -> None:
    """Silence Lightning, and limit the threads of torch to a CPU quota, which it ignores."""
    import torch

    silence_libraries()
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > num_cores():
        torch.set_num_threads(num_cores())


def end_aborted(job: Job, by: str, *, updates_status: bool) -> int:
    """Return the exit code of an aborted task.

    If `updates_status`, update the status of a training.
    """
    if job.task is not train:
        return EXIT_INTERRUPTED
    state = job.folder.read_status().get("state")
    if state in ENDS:
        return ENDS[state]
    if updates_status:
        job.folder.update_status(state="failed", reason=f"aborted by {by}")
    return EXIT_INTERRUPTED


def refusal_errors(job: Job) -> list[Error]:
    """Return the configuration errors because of which a training did not begin or resume.

    The list is empty for other tasks.
    """
    has_begun = job.folder.read_status().get("state", "starting") != "starting"
    if job.task is not train or has_begun or not job.folder.failure.exists():
        return []
    failure = job.folder.failure.read_text("utf-8")
    return errors_of(failure) if failure.startswith(PREFIX) else []


def show_failure(
    job: Job, end: str = "a worker failed without an error message", out: TextIO | None = None
) -> None:
    """Print the first failure of a job, or `end` if none was recorded.

    It is printed to standard error by default, and stored in the status of a run.
    """
    failure = job.folder.failure.read_text("utf-8").rstrip() if job.folder.failure.exists() else ""
    message = failure or end
    try:
        if job.task is train:
            job.folder.update_status(state="failed", reason=job.folder.failure_cause() or message)
    except OSError as error:
        from lockstep.assembly.refusals import explain_error

        message = failure or explain_error(error, job.folder.path, "the command") or message
    from lockstep.system import tracebacks

    paths = (str(job.folder.path), display_path(job.folder.failure)) if job.task is train else None
    print(tracebacks.report(message, paths), file=out or sys.stderr, flush=True)

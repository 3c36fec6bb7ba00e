"""The script of a SLURM job or of an array of them, written and submitted by submitit."""

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lockstep.cluster import job
from lockstep.config.checks.workers import resolve_workers
from lockstep.config.errors import config_error
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.sections import Cluster
from lockstep.runs.folder import EXIT_STOPPED, RunFolder
from lockstep.system.internals import sbatch_script

if TYPE_CHECKING:
    import submitit

# Variables of an outer launcher, which a job would mistake for its own.
LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)

# SBATCH_* variables override the script. The defaults of a site are kept if the configuration does
# not set the option.
KEPT = ("account", "partition", "qos", "constraint", "reservation")

MAX_ARRAY_TASKS = 10**9  # number of parallel tasks of an array, for which submitit's default is 256

ID = "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
# By this shell line, the script of a job, which runs outside of any container, requeues the job.
# When a job is cancelled or preempted, SLURM ends bash itself, which then has another exit code.
REQUEUE = (
    f'trap \'if [ $? = {job.REQUEUE} ]; then scontrol requeue "{ID}"; '
    f"exit {EXIT_STOPPED}; fi' EXIT"
)


class JobPaths(NamedTuple):
    """Folders of a job: its scripts and logs, the copy of the code, and its current folder."""

    files: Path
    code: Path
    cwd: Path


def executor(
    config: Config, name: str, paths: JobPaths, *, is_head: bool
) -> "submitit.SlurmExecutor":
    """Create submitit's executor of a job.

    The job has a task for each worker, or one task on its first node (`is_head`).
    """
    import submitit

    for folder in paths:  # A name could add a line to the script.
        if re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", str(folder)):
            raise config_error(
                "value",
                "the folder",
                f"{str(folder)!r} has a character that the script of a job cannot contain",
                "rename it",
            )
    cluster, num_parallel = config.cluster, config.launcher.parallel
    workers = resolve_workers(config)
    prefix, python = interpreter(cluster)
    slurm_executor = submitit.SlurmExecutor(
        paths.files, python=f"{prefix}{python} -I -S -c {shlex.quote(job.HOLD)} {python}"
    )
    cpus = cluster.cpus_per_worker
    parameters = {
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "time": cluster.time_min,
        "mem": f"{round(cluster.memory_gib * 1024)}M" if cluster.memory_gib is not None else None,
        "cpus_per_task": cpus,
        "gpus_per_node": len(workers.gpus) or None,
        "constraint": cluster.constraint,
        "array_parallelism": MAX_ARRAY_TASKS if num_parallel == "auto" else num_parallel,
    }
    options = [line.removeprefix("--").partition("=") for line in cluster.sbatch]
    slurm_executor.update_parameters(
        **{key: value for key, value in parameters.items() if value is not None},
        job_name=name,
        wckey=None,
        nodes=workers.num_nodes,
        ntasks_per_node=workers.num_local,
        setup=[
            REQUEUE,
            *cluster.setup,
            *exports(paths.code),
            "export SUBMITIT_LOG_LEVEL=WARNING",
        ],
        stderr_to_stdout=True,
        srun_args=[
            "--open-mode=append",  # This keeps the log from before a requeue.
            "--kill-on-bad-exit=1",  # A rank that failed leaves others in a collective.
            # The steps of the task use the same resources. Without --cpu-bind, one task has one
            # core.
            *(["--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none"] if is_head else []),
            # Since SLURM 22.05 it is not inherited from sbatch.
            *([f"--cpus-per-task={cpus}"] if cpus is not None else []),
        ],
        additional_parameters={
            # It replaces submitit's signal, on which submitit requeues inside a handler.
            "signal": f"USR1@{cluster.warn_s}",
            "requeue": True,
            "chdir": str(paths.cwd),
            **{key: value if sign else True for key, sign, value in options},
        },
    )
    return slurm_executor


def interpreter(cluster: Cluster) -> tuple[str, str]:
    """Return the container command, if any, and the Python interpreter.

    The command ends with a space. Without a container, the interpreter is that of this process.
    """
    if cluster.container:
        return f"{cluster.container} ", "python"
    return "", shlex.quote(sys.executable)


def exports(code: Path) -> list[str]:
    """Return shell lines by which Python finds the copied code before an editable install.

    The current folder is not searched.
    """
    path = shlex.quote(f"{code / 'src'}:{code}")
    return [f"export PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}", "export PYTHONSAFEPATH=1"]


def script(slurm_executor: "submitit.SlurmExecutor", num_runs: int) -> str:
    if num_runs > 1:
        slurm_executor.parameters["map_count"] = num_runs
    return sbatch_script(slurm_executor)


def submit(
    slurm_executor: "submitit.SlurmExecutor", folders: Sequence[RunFolder]
) -> list[tuple[str, Path, None]]:
    """Submit runs, several as one array, and return id, log and no pid for each.

    Raises ConfigError.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        with _clean_environment(
            {*slurm_executor.parameters, *slurm_executor.parameters["additional_parameters"]}
        ):
            jobs = slurm_executor.map_array(job.run_job, [str(folder.path) for folder in folders])
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise config_error("failed", "", "sbatch refused the job", _reason(error)) from error
    for submitted_job in jobs:
        # The file contains cluster.setup, which may contain secrets.
        submitted_job.paths.submission_file.chmod(0o600)
    return [(submitted_job.job_id, submitted_job.paths.stdout, None) for submitted_job in jobs]


def _reason(error: Exception) -> str:
    """Return the message of sbatch, without the traceback that submitit puts before it."""
    lines = [line.removeprefix("sbatch: error: ").strip() for line in str(error).splitlines()]
    reasons = [
        line
        for line in lines
        if line and not line.startswith(("Traceback", "File ", "stderr", "stdout"))
    ]
    return "; ".join(reasons[-3:]) or type(error).__name__


@contextlib.contextmanager
def _clean_environment(options: Collection[str]) -> Iterator[None]:
    """Remove the variables of an outer job or launcher.

    Also remove those of sbatch that would override `options`.
    """
    is_inside = "SLURM_JOB_ID" in os.environ

    def is_removed(variable: str) -> bool:
        if variable.startswith("SBATCH_"):
            option = variable.removeprefix("SBATCH_").lower()
            return option not in KEPT or option in options
        is_slurm = variable.startswith("SLURM") and variable != "SLURM_CONF"
        return variable in LAUNCHER_VARIABLES or (is_inside and is_slurm)

    names = [variable for variable in os.environ if is_removed(variable)]
    removed_variables = {variable: os.environ.pop(variable) for variable in names}
    try:
        yield
    finally:
        os.environ.update(removed_variables)

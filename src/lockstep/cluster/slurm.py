"""The script of a job of SLURM, or of an array of them: written and submitted through submitit."""

import contextlib
import os
import shlex
import sys
import uuid
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.cluster import job
from lockstep.cluster.code import search_path
from lockstep.config.errors import ConfigError
from lockstep.config.sections import Cluster
from lockstep.config.workers import Workers
from lockstep.runs.folder import EXIT_STOPPED, RunFolder

if TYPE_CHECKING:
    import submitit

# what an outer launcher left would be taken for the place of a rank
OUTER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")

# variables of sbatch that hold where the configuration does not say their option; any other would be above the script
KEPT = ("account", "partition", "qos", "constraint", "reservation")

ALL = 10**9  # tasks of an array at once, of those that there are; submitit alone would take 256


def executor(
    cluster: Cluster, workers: Workers, *, name: str, files: Path, code: Path, cwd: Path
) -> "submitit.SlurmExecutor":
    """Submitit's executor with all that the configuration says; `files` is where scripts and logs go."""
    import submitit

    prefix, python = interpreter(cluster)
    slurm_executor = submitit.SlurmExecutor(files, python=f"{prefix}{python} -I -S -c {shlex.quote(job.HOLD)} {python}")
    cpus = cluster.cpus_per_worker
    parameters: dict[str, Any] = {
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "time": cluster.time_min,
        "mem": f"{round(cluster.memory_gib * 1024)}M" if cluster.memory_gib is not None else None,
        "cpus_per_task": cpus,
        "gpus_per_node": len(workers.gpus) or None,
        "constraint": cluster.constraint,
        "array_parallelism": cluster.parallel or ALL,
    }
    slurm_executor.update_parameters(
        **{key: value for key, value in parameters.items() if value is not None},
        job_name=name,
        wckey=None,
        nodes=workers.num_nodes,
        ntasks_per_node=workers.num_local,
        setup=[_requeue(), *cluster.setup, *exports(code), "export SUBMITIT_LOG_LEVEL=WARNING"],
        stderr_to_stdout=True,
        srun_args=[
            "--open-mode=append",  # the log goes on after a requeue
            "--kill-on-bad-exit=1",  # a rank that failed leaves others in a collective
            *([f"--cpus-per-task={cpus}"] if cpus is not None else []),  # srun does not read it since SLURM 22.05
        ],
        additional_parameters={
            "signal": f"USR1@{cluster.warn_s}",  # instead of submitit's, on which it requeues inside a handler
            "requeue": True,
            "chdir": str(cwd),
            **{
                key: value if sign else True
                for key, sign, value in (line[2:].partition("=") for line in cluster.sbatch)
            },
        },
    )
    return slurm_executor


def interpreter(cluster: Cluster) -> tuple[str, str]:
    """What stands before python, with a space behind it, and python for a shell: inside of a container its own."""
    return (f"{cluster.container} ", "python") if cluster.container else ("", shlex.quote(sys.executable))


def exports(code: Path) -> list[str]:
    """Shell lines after which python finds the frozen code, and nothing beside the current folder."""
    path = shlex.quote(search_path(code))
    return [f"export PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}", "export PYTHONSAFEPATH=1"]


def _requeue() -> str:
    """A shell line after which the script, which is in no container, requeues its job if the exit code asks for that.

    A cancelled or preempted job ends bash itself: then the code is another one.
    """
    job_id = "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
    return f"trap 'if [ $? = {job.REQUEUE} ]; then scontrol requeue \"{job_id}\"; exit {EXIT_STOPPED}; fi' EXIT"


def script(slurm_executor: "submitit.SlurmExecutor", num_runs: int) -> str:
    """What sbatch would get for so many runs."""
    if num_runs > 1:
        slurm_executor.parameters["map_count"] = num_runs
    # submitit has no public way to get the text (1.5.4)
    return slurm_executor._make_submission_file_text(slurm_executor._submitit_command_str, uuid.uuid4().hex)


def submit(
    slurm_executor: "submitit.SlurmExecutor", folders: Sequence[RunFolder], settings: job.Settings
) -> list[tuple[str, Path, None]]:
    """Submit runs, several as one array. Returns id and log of each, and no process. Raises ConfigError."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    paths = [str(folder.path) for folder in folders]
    try:
        with _own_environment({*slurm_executor.parameters, *slurm_executor.parameters["additional_parameters"]}):
            jobs = slurm_executor.map_array(job.run, paths, [settings] * len(paths))
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise ConfigError([f"sbatch refused the job: {_said(error)}"]) from error
    for submitted in jobs:
        submitted.paths.submission_file.chmod(0o600)  # cluster.setup may hold secrets
    return [(submitted.job_id, submitted.paths.stdout, None) for submitted in jobs]


def _said(error: Exception) -> str:
    """What sbatch said, without the traceback that submitit puts in front."""
    lines = [line.removeprefix("sbatch: error: ").strip() for line in str(error).splitlines()]
    reasons = [line for line in lines if line and not line.startswith(("Traceback", "File ", "stderr", "stdout"))]
    return "; ".join(reasons[-3:]) or type(error).__name__


@contextlib.contextmanager
def _own_environment(options: Collection[str]) -> Iterator[None]:
    """Without the variables of a job or launcher around this process, which sbatch would pass on.

    And without those of sbatch that would override `options`, which the configuration sets.
    """
    is_inside = "SLURM_JOB_ID" in os.environ

    def is_left(name: str) -> bool:
        option = name.removeprefix("SBATCH_").lower()
        if name.startswith("SBATCH_"):
            return option not in KEPT or option in options
        return name in OUTER or (is_inside and name.startswith("SLURM") and name != "SLURM_CONF")

    left = [name for name in os.environ if is_left(name)]
    kept = {name: os.environ.pop(name) for name in left}
    try:
        yield
    finally:
        os.environ.update(kept)

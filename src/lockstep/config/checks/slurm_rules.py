"""Resources that a job requests, and rules for the settings of a cluster."""

import os
import re
import shutil

from lockstep.config.errors import Error, Errors, literal
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.sections import Cluster
from lockstep.system import launcher

OPTION = re.compile(r"--[a-z][a-z0-9-]*(=\S.*)?")
# Options of sbatch, with the key that sets each of them; "" stands for Lockstep itself.
KEYS = {
    "partition": "cluster.partition",
    "account": "cluster.account",
    "qos": "cluster.qos",
    "constraint": "cluster.constraint",
    "time": "cluster.time_min",
    "signal": "cluster.warn_s",
    "mem": "cluster.memory_gib", "cpus-per-task": "cluster.cpus_per_worker",
    "gpus-per-node": "cluster.gpus_per_node",
    "nodes": "trainer.num_nodes",
    "ntasks": "trainer.devices (unequal nodes: srun in your own script)",
    "ntasks-per-node": "trainer.devices", "job-name": "name",
    **dict.fromkeys(
        (
            "requeue", "no-requeue", "output", "error", "open-mode", "array", "chdir", "export",
        ),
        "",
    ),
    # These options change the reply "Submitted batch job 17".
    **dict.fromkeys(
        ("parsable", "quiet", "wait", "test-only", "wrap", "help", "usage", "version"), ""
    ),
}  # fmt: skip
# Settings of `cluster` without a default value. Only SLURM reads `OF_SLURM`, and any job reads
# `OF_JOBS`.
OF_SLURM = (
    "partition",
    "account",
    "qos",
    "time_min",
    "memory_gib",
    "cpus_per_worker",
    "gpus_per_node",
    "constraint",
    "sbatch",
)
OF_JOBS = ("setup", "container")


def num_gpus(config: Config) -> int:
    """Return the GPUs that a job requests on each node, 0 if `num_workers` has errors."""
    if config.cluster.gpus_per_node is not None:
        return config.cluster.gpus_per_node
    devices = config.trainer.devices
    return devices if config.strategy.name != "cpu" and isinstance(devices, int) else 0


def num_workers(config: Config) -> tuple[int, list[Error]]:
    """Return the workers on each node of a job, and errors.

    The machine from which the job is submitted does not matter.
    """
    devices = config.trainer.devices
    gpus_per_node = config.cluster.gpus_per_node
    strategy = config.strategy.name
    if isinstance(devices, list):
        return max(1, len(devices)), [
            Error(
                "value",
                f"trainer.devices={literal(devices)}",
                "names GPUs, but SLURM chooses them",
                f"give {len(devices)}",
            )
        ]
    if strategy == "cpu" and gpus_per_node:
        return 1, [
            Error(
                "conflict",
                f"cluster.gpus_per_node={gpus_per_node}",
                ", but strategy=cpu uses no GPUs",
                "remove one of them",
            )
        ]
    if devices == "auto":
        if strategy in ("single_device", "cpu"):
            return 1, []
        if gpus_per_node:
            return gpus_per_node, []
        hint = "strategy=cpu" if gpus_per_node == 0 else "cluster.gpus_per_node=N, or strategy=cpu"
        return 1, [
            Error(
                "missing",
                "trainer.devices=auto",
                "cannot see the nodes of a cluster",
                f"use trainer.devices=N, {hint}",
            )
        ]
    if gpus_per_node and devices > gpus_per_node:
        return devices, [
            Error(
                "range",
                f"trainer.devices={devices}",
                f"is above cluster.gpus_per_node={gpus_per_node}",
                "a worker needs a GPU",
            )
        ]
    return devices, []


def errors(config: Config) -> Errors:
    """Yield the errors of the settings of a cluster, and of submitting from this machine."""
    if config.cluster.name != "none":
        yield from _submit_errors(config)
    elif config.dry_run:
        yield Error(
            "conflict",
            "dry_run=true",
            "prints the script of a job, and cluster=none has no job",
            "choose cluster=slurm",
        )
    yield from (
        _slurm_errors(config) if config.cluster.name == "slurm" else _unread_errors(config.cluster)
    )


def _submit_errors(config: Config) -> Errors:
    cluster_name, world = config.cluster.name, launcher.outer_world(os.environ)
    if world is not None and world.world_size > 1:
        yield Error(
            "conflict",
            f"cluster={cluster_name}",
            f"is submitted by one process, but {world.launcher} started {world.world_size}",
            "start one",
        )
    missing = [tool for tool in ("sbatch", "srun", "scontrol") if shutil.which(tool) is None]
    # The script is printed without them.
    if missing and cluster_name == "slurm" and not config.dry_run:
        yield Error(
            "not-installed",
            "cluster=slurm",
            f", but this machine has no {missing[0]}",
            "submit from a login node, or use cluster=local",
        )


def _unread_errors(cluster: Cluster) -> Errors:
    for key in OF_SLURM:
        if (value := getattr(cluster, key)) not in (None, []):
            yield Error(
                "conflict",
                f"cluster.{key}={value}",
                f"applies only to cluster=slurm, not to {cluster.name}",
                "add cluster=slurm, or remove it",
            )
    for key in OF_JOBS if cluster.name == "none" else ():
        if value := getattr(cluster, key):
            yield Error(
                "conflict",
                f"cluster.{key}={value}",
                "applies only to jobs",
                "add cluster=slurm or local, or remove it",
            )


def _slurm_errors(config: Config) -> Errors:
    cluster = config.cluster
    if config.search is not None and config.launcher.parallel == "auto":
        yield Error(
            "missing",
            "search",
            "needs a maximum number of parallel jobs on a cluster",
            "set launcher.parallel=N",
        )
    if cluster.time_min is None:
        yield Error(
            "missing",
            "cluster.time_min",
            "has no value, and cluster=slurm needs one",
            "add cluster.time_min=MINUTES",
        )
    elif cluster.warn_s >= 60 * cluster.time_min:
        yield Error(
            "range",
            f"cluster.warn_s={cluster.warn_s}",
            f"is not below the time limit, cluster.time_min={cluster.time_min}",
            "the run would be stopped as soon as it starts",
        )
    for line in cluster.sbatch:
        option = line.partition("=")[0].removeprefix("--")
        if not OPTION.fullmatch(line):
            yield Error(
                "value",
                "cluster.sbatch",
                f"has {line!r}",
                "write --option or --option=value, see `sbatch --help`",
            )
        elif option in KEYS:
            yield Error(
                "conflict",
                "cluster.sbatch",
                f"has {line}",
                f"set by {KEYS[option] or 'Lockstep'}, remove it",
            )


def drop_job_settings(cluster: Cluster) -> Cluster:
    """Return the settings for a training in this process, without those of a job."""
    unset = {
        key: [] if isinstance(getattr(cluster, key), list) else None
        for key in (*OF_SLURM, *OF_JOBS)
    }
    return cluster.model_copy(update={"name": "none", **unset})

"""Builds the environments of a benchmark on the available machines, with their configurations."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lockstep.config import build
from lockstep.config.checks import validation
from lockstep.config.errors import ConfigError
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import BenchmarkConfig, Config
from lockstep.config.schema.sections import ExecutionEnvironment
from lockstep.system import hardware, launcher


@dataclass(frozen=True)
class Machines:
    """Resources of a benchmark: a number of machines, and the cores and GPUs of each."""

    num_cores: int
    num_gpus: int
    count: int = 1


def available_machines(environ: Mapping[str, str]) -> Machines:
    """Return the machines of a SLURM allocation, or this machine without one.

    The machines of an allocation have the cores of the smallest one, and as many GPUs as this one.
    """
    num_cores = hardware.num_cores()
    counts = launcher.counts_of_nodes(environ.get("SLURM_JOB_CPUS_PER_NODE", str(num_cores)))
    return Machines(min(num_cores, *counts), hardware.num_visible_gpus(), len(counts))


@dataclass(frozen=True)
class Environment:
    """An environment with `num_local` workers of `num_threads` threads on each machine.

    `skipped` is the reason if it is not measured. Then `config` is that of the benchmark.
    """

    name: str
    device: str
    num_local: int
    num_nodes: int
    num_threads: int
    config: Config
    skipped: str = ""

    @property
    def num_workers(self) -> int:
        return self.num_local * self.num_nodes


def environments(config: BenchmarkConfig, machines: Machines) -> list[Environment]:
    """Return every environment of the configuration, in its order.

    Raises ConfigError with all errors of their runs.
    """
    candidates, errors = [], []
    for name, entry in config.benchmark.environments.items():
        if entry is None:
            continue
        try:
            candidates.append(_environment(name, entry, config, machines))
        except ConfigError as error:
            errors += [problem.within(f"benchmark.environments.{name}") for problem in error.errors]
    if errors:
        raise ConfigError(*errors)
    return candidates


def _environment(
    name: str, entry: ExecutionEnvironment, config: BenchmarkConfig, machines: Machines
) -> Environment:
    device, num_present = (
        ("cpu", machines.num_cores) if entry.strategy == "cpu" else ("gpu", machines.num_gpus)
    )
    num_local = num_present if entry.devices == "all" else entry.devices
    num_nodes = machines.count if entry.num_nodes == "all" else entry.num_nodes
    environment = Environment(
        name, device, num_local, num_nodes, max(1, machines.num_cores // max(1, num_local)), config
    )
    shortage = _shortage(environment, num_present, machines.count, is_all=entry.devices == "all")
    if shortage:
        return replace(environment, skipped=shortage)
    tree = config_file.to_tree(config)
    del tree["benchmark"]
    tree["trainer"] |= {
        "devices": num_local,
        "num_nodes": 1,
        "worker_weights": None,
        "max_time_s": config.benchmark.budget_s,
    }
    tree["strategy"]["name"] = entry.strategy
    tree["cluster"]["gpus_per_node"] = None  # The job may have more GPUs than the run.
    tree["scale_with_workers"] = entry.scale_with_workers or config.scale_with_workers
    # The check is for one machine, because this process is alone.
    run_config = validation.check_tree(tree)
    trainer = run_config.trainer.model_copy(update={"num_nodes": num_nodes})
    return replace(
        environment, config=build.resolve_config(run_config.model_copy(update={"trainer": trainer}))
    )


def _shortage(
    environment: Environment, num_present: int, num_machines: int, *, is_all: bool
) -> str:
    """Return what the machines lack for an environment, or "" if they have everything."""
    if environment.num_nodes > num_machines:
        return (
            f"needs {environment.num_nodes} machines of a SLURM allocation, and has {num_machines}"
        )
    if environment.num_nodes > 1 and shutil.which("srun") is None:
        return "srun, which starts workers on other machines, was not found on this one"
    device_name = "core" if environment.device == "cpu" else "GPU"
    is_enough = environment.num_workers > 1
    if not is_all:  # Processes can share cores.
        is_enough = environment.num_local <= num_present or environment.device == "cpu"
    location = "this machine" if num_machines == 1 else f"each of {num_machines} machines"
    return "" if is_enough else f"needs more {device_name}s than {location} has ({num_present})"

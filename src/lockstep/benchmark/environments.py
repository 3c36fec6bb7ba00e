"""The environments of a benchmark on the machines it has, and the configuration of the run in each."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.config import build
from lockstep.config.checks import validation
from lockstep.config.errors import ConfigError, Error
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import BenchmarkConfig, Config
from lockstep.config.schema.sections import ExecutionEnvironment
from lockstep.system import hardware, launcher

GPU_STRATEGIES = ("single_device", "ddp")


@dataclass(frozen=True)
class Machines:
    """What a benchmark can use: a number of machines, and the cores and GPUs of each."""

    num_cores: int
    num_gpus: int
    count: int = 1


def available_machines(environ: Mapping[str, str]) -> Machines:
    """Return the machines of a SLURM allocation, with the cores of the smallest and GPUs as here; or this machine."""
    num_cores = hardware.num_cores()
    counts = launcher.counts_of_nodes(environ.get("SLURM_JOB_CPUS_PER_NODE", str(num_cores)))
    return Machines(min(num_cores, *counts), hardware.num_visible_gpus(), len(counts))


@dataclass(frozen=True)
class Environment:
    """An environment to train in: `num_workers` processes of `num_threads` threads; without a config it is skipped."""

    name: str
    device: str
    num_workers: int
    num_nodes: int
    num_threads: int
    config: Config | None
    skipped: str

    @property
    def is_data_parallel(self) -> bool:
        """True if its workers form a process group, even one of a single worker."""
        return self.config is not None and (self.num_workers > 1 or self.config.strategy.name == "ddp")

    @property
    def num_local(self) -> int:
        return self.num_workers // self.num_nodes


def environments(config: BenchmarkConfig, machines: Machines) -> list[Environment]:
    """Every environment of the configuration, in its order. Raises ConfigError with all errors of their runs."""
    built, errors = [], []
    for name, entry in config.benchmark.environments.items():
        if entry is None:
            continue
        try:
            built.append(_environment(name, entry, config, machines))
        except ConfigError as error:
            errors += [each.within(f"benchmark.environments.{name}") for each in error.errors]
    if not built and not errors:
        fix = "keep one, or add +benchmark.environments.NAME=..."
        errors.append(Error("benchmark.environments", "has no entry", fix))
    if errors:
        raise ConfigError(*errors)
    return built


def _environment(name: str, entry: ExecutionEnvironment, config: BenchmarkConfig, machines: Machines) -> Environment:
    device = "gpu" if entry.strategy in GPU_STRATEGIES else "cpu"
    num_present = machines.num_gpus if device == "gpu" else machines.num_cores
    num_local = num_present if entry.devices == "all" else entry.devices
    num_nodes = machines.count if entry.num_nodes == "all" else entry.num_nodes
    skipped = _shortage(device, entry, num_present, num_nodes, machines.count)
    if not skipped and device == "cpu" and config.trainer.precision == "bfloat16":
        skipped = _bfloat16_obstacle()
    if skipped:
        return Environment(name, device, num_local * num_nodes, num_nodes, 0, None, skipped)
    tree = config_file.to_tree(config)
    del tree["benchmark"]
    tree["trainer"] |= {"devices": num_local, "num_nodes": 1, "loads": None, "max_time_s": config.benchmark.budget_s}
    tree["strategy"]["name"] = entry.strategy
    tree["cluster"]["gpus_per_node"] = None  # those of the job, which may be more
    tree["notify"]["command"] = None  # for a run, not for a part of a benchmark
    tree["scale_with_workers"] = entry.scale_with_workers
    checked = validation.check_tree(tree)  # on one machine, because this process is alone
    trainer = checked.trainer.model_copy(update={"num_nodes": num_nodes})
    scaled = build.settle_config(checked.model_copy(update={"trainer": trainer}))
    num_threads = max(1, machines.num_cores // num_local)
    return Environment(name, device, num_local * num_nodes, num_nodes, num_threads, scaled, "")


def _shortage(device: str, entry: ExecutionEnvironment, num_present: int, num_nodes: int, count: int) -> str:
    """Return what the `count` machines lack for an environment; empty if they have all."""
    what = "GPU" if device == "gpu" else "core"
    where = "this machine" if count == 1 else f"each of the {count} machines"
    has = f"{where} has {num_present or 'no'} {what}{'' if num_present == 1 else 's'}"
    if num_nodes > count:
        return f"needs {num_nodes} machines of a SLURM allocation, and has {count}"
    if num_nodes > 1 and shutil.which("srun") is None:
        return "srun, which starts workers on other machines, was not found on this one"
    if num_present == 0:
        return has
    if entry.devices == "all":
        return f"needs at least two {what}s, {has}" if num_present * num_nodes < 2 else ""
    # processes can share cores, but not GPUs
    return f"needs {entry.devices} {what}s, {has}" if device == "gpu" and entry.devices > num_present else ""


def _bfloat16_obstacle() -> str:
    """Reason why a CPU does not train in bfloat16, or "". Emulated bfloat16 products take minutes."""
    import torch

    from lockstep.assembly.precision import bfloat16_unit

    has_unit = bfloat16_unit(torch.device("cpu")) is not None
    return "" if has_unit else "this CPU has no bfloat16 arithmetic (trainer.precision=auto computes in float32)"

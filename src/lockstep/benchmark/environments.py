"""The environments of a benchmark on this machine, and the configuration of the run in each."""

from dataclasses import dataclass

from lockstep.config import build, storage, validation
from lockstep.config.errors import ConfigError
from lockstep.config.schema import BenchmarkConfig, Config
from lockstep.config.sections import ExecutionEnvironment

GPU_STRATEGIES = ("single_device", "ddp")


@dataclass(frozen=True)
class Environment:
    """An environment to train in: `num_workers` processes of `num_threads` threads; without a config it is skipped."""

    name: str
    device: str
    num_workers: int
    num_threads: int
    config: Config | None
    skipped: str

    @property
    def is_data_parallel(self) -> bool:
        """True if its workers form a process group, even one of a single worker."""
        return self.config is not None and (self.num_workers > 1 or self.config.strategy.name == "ddp")


def environments(config: BenchmarkConfig, num_cores: int, num_gpus: int) -> list[Environment]:
    """Every environment of the configuration, in its order. Raises ConfigError with all errors of their runs."""
    built, errors = [], []
    for name, entry in config.benchmark.environments.items():
        if entry is None:
            continue
        try:
            built.append(_environment(name, entry, config, num_cores, num_gpus))
        except ConfigError as error:
            errors += [f"benchmark.environments.{name}: {message}" for message in error.errors]
    if not built and not errors:
        errors.append("benchmark.environments has no entry: keep one, or add +benchmark.environments.NAME=...")
    if errors:
        raise ConfigError(errors)
    return built


def _environment(
    name: str, entry: ExecutionEnvironment, config: BenchmarkConfig, num_cores: int, num_gpus: int
) -> Environment:
    device = "gpu" if entry.strategy in GPU_STRATEGIES else "cpu"
    num_present = num_gpus if device == "gpu" else num_cores
    num_workers = num_present if entry.devices == "all" else entry.devices
    skipped = _missing(device, entry, num_present)
    if not skipped and device == "cpu" and config.trainer.precision == "bfloat16":
        skipped = _without_bfloat16()
    if skipped:
        return Environment(name, device, num_workers, 0, None, skipped)
    tree = storage.to_tree(config)
    del tree["benchmark"]
    tree["trainer"] |= {
        "devices": num_workers,
        "num_nodes": 1,
        "loads": None,
        "max_time_s": config.benchmark.budget_s,
    }
    tree["strategy"]["name"] = entry.strategy
    tree["scale_with_workers"] = entry.scale_with_workers
    scaled = build.scaled(validation.check_tree(tree))
    return Environment(name, device, num_workers, max(1, num_cores // num_workers), scaled, "")


def _missing(device: str, entry: ExecutionEnvironment, num_present: int) -> str:
    """Return the cores or GPUs that this machine lacks for an environment; empty if it has all."""
    what = "GPU" if device == "gpu" else "core"
    has = f"this machine has {num_present or 'no'} {what}{'' if num_present == 1 else 's'}"
    if num_present == 0:
        return has
    if entry.devices == "all":
        return f"needs at least two {what}s, {has}" if num_present < 2 else ""
    # processes can share cores, but not GPUs
    return f"needs {entry.devices} {what}s, {has}" if device == "gpu" and entry.devices > num_present else ""


def _without_bfloat16() -> str:
    """Reason why a CPU does not train in bfloat16, or "". Emulated bfloat16 products take minutes."""
    import torch

    from lockstep.training.precision import bfloat16_unit

    has_unit = bfloat16_unit(torch.device("cpu")) is not None
    return "" if has_unit else "this CPU has no bfloat16 arithmetic (trainer.precision=auto computes in float32)"

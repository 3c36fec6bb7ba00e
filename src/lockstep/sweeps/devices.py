"""Which devices a trial gets, and which are free: GPUs by number or name, cores where no GPU is used. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lockstep.config.errors import ConfigError
from lockstep.config.schema import Config
from lockstep.config.sections import Launcher
from lockstep.system.wording import plural


class Machine(NamedTuple):
    """What trials share: GPUs as CUDA_VISIBLE_DEVICES names them, and the numbers of cores."""

    gpus: tuple[str, ...]
    cores: tuple[int, ...]


class Need(NamedTuple):
    """What a trial asks for: worker processes, and GPUs as a count or by their positions; () for none."""

    num_workers: int
    gpus: int | tuple[int, ...]


class Shard(NamedTuple):
    """What a trial holds while it runs. `is_named`: the trial says its GPUs by number itself, so all stay visible."""

    gpus: tuple[str, ...]
    cores: tuple[int, ...]
    num_threads: int
    is_named: bool

    @property
    def label(self) -> str:
        """The devices as people read them: `GPU 0,1` or `cores 2-3`."""
        if self.gpus:
            return f"GPU {','.join(self.gpus)}"
        first, last = self.cores[0], self.cores[-1]
        if len(self.cores) == 1:
            return f"core {first}"
        is_range = list(self.cores) == list(range(first, last + 1))
        return f"cores {first}-{last}" if is_range else f"cores {','.join(map(str, self.cores))}"


def num_at_once(launcher: Launcher, machine: Machine, num_trials: int, configs: Sequence[Config]) -> int:
    """How many trials may run side by side. Raises ConfigError when the machine has not so many devices.

    On GPUs as many as there are, on a CPU as many as have a core for each of their workers.
    """
    if launcher.mode == "sequential":
        if launcher.parallel not in ("auto", 1):
            what = f"launcher.parallel={launcher.parallel}, but launcher.mode=sequential runs one trial at a time"
            raise ConfigError([f"{what}: leave one of them out"])
        return 1
    uses_gpus = any(_uses_gpus(config, machine) for config in configs)
    num_devices = len(machine.gpus) if uses_gpus else len(machine.cores)
    if launcher.parallel != "auto":
        if launcher.parallel > num_devices:
            has = plural(num_devices, "GPU" if uses_gpus else "core")
            what = f"launcher.parallel={launcher.parallel}, but this machine has {has}"
            raise ConfigError([f"{what}: use at most {num_devices}"])
        return launcher.parallel
    fewest = 1 if uses_gpus else min(_num_cpu_workers(config) for config in configs)
    return max(1, min(num_devices // fewest, num_trials))


def need(config: Config, machine: Machine, at_once: int) -> Need:
    """What a trial asks for when so many run at once. Raises ConfigError for GPUs the machine does not have."""
    devices = config.trainer.devices
    if not _uses_gpus(config, machine):
        return Need(_num_cpu_workers(config), ())
    num_gpus = len(machine.gpus)
    too_many = f"trainer.devices={devices}, but this machine has {plural(num_gpus, 'GPU')}"
    if isinstance(devices, list):
        if max(devices) >= num_gpus:
            raise ConfigError([f"{too_many}: use smaller numbers"])
        return Need(len(devices), tuple(devices))
    if devices == "auto":
        devices = 1 if config.strategy.name == "single_device" else max(1, num_gpus // at_once)
    if devices > num_gpus:
        raise ConfigError([f"{too_many}: use at most {num_gpus}"])
    return Need(devices, devices)


def _uses_gpus(config: Config, machine: Machine) -> bool:
    return bool(machine.gpus) and config.strategy.name != "cpu"


def _num_cpu_workers(config: Config) -> int:
    devices = config.trainer.devices
    return 1 if devices == "auto" else len(devices) if isinstance(devices, list) else devices


@dataclass
class Devices:
    """The devices of the machine, and which of them trials hold. A core belongs to one CPU trial at a time."""

    machine: Machine
    at_once: int
    held: list[Shard] = field(default_factory=list)

    def take(self, wanted: Need) -> Shard | None:
        """Devices that no other trial holds; None while too few are free."""
        if len(self.held) >= self.at_once:
            return None
        shard = self._gpus(wanted) if wanted.gpus else self._cores(wanted)
        if shard is not None:
            self.held.append(shard)
        return shard

    def _cores(self, wanted: Need) -> Shard | None:
        free = [core for core in self.machine.cores if all(core not in shard.cores for shard in self.held)]
        num_cores = len(self.machine.cores)
        count = min(num_cores, max(wanted.num_workers, num_cores // self.at_once))
        shard = Shard((), tuple(free[:count]), max(1, count // wanted.num_workers), False)
        return shard if len(free) >= count else None

    def _gpus(self, wanted: Need) -> Shard | None:
        num_threads = max(1, len(self.machine.cores) // (self.at_once * wanted.num_workers))
        held = {gpu for shard in self.held for gpu in shard.gpus}
        if isinstance(wanted.gpus, tuple):
            named = tuple(self.machine.gpus[position] for position in wanted.gpus)
            return None if held & set(named) else Shard(named, (), num_threads, True)
        free = [gpu for gpu in self.machine.gpus if gpu not in held]
        return Shard(tuple(free[: wanted.gpus]), (), num_threads, False) if len(free) >= wanted.gpus else None

    def give_back(self, shard: Shard) -> None:
        """Free the devices of a trial that has ended."""
        self.held.remove(shard)

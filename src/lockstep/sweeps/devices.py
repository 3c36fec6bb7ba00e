"""Assigns devices to trials: GPUs by number or name, or cores if no GPU is used.

The functions have no side effects outside of their arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lockstep.config.errors import config_error
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.sections import Launcher
from lockstep.system.text import plural


class Machine(NamedTuple):
    """The devices that trials share: GPUs as in CUDA_VISIBLE_DEVICES, and the numbers of cores."""

    gpus: tuple[str, ...]
    cores: tuple[int, ...]


class Need(NamedTuple):
    """The devices that a trial needs.

    `num_workers` is the number of worker processes. `gpus` is a count or the positions of GPUs, and
    () for none.
    """

    num_workers: int
    gpus: int | tuple[int, ...]


class DeviceSlot(NamedTuple):
    """The device slot of a trial: the devices that it holds.

    If `is_named`, the trial names its GPUs by number, so all GPUs stay visible.
    """

    gpus: tuple[str, ...]
    cores: tuple[int, ...]
    num_threads: int
    is_named: bool

    @property
    def label(self) -> str:
        """The devices as text: `GPU 0,1` or `2 cores`."""
        if self.gpus:
            return f"GPU {','.join(self.gpus)}"
        return plural(len(self.cores), "core")


def num_parallel(
    launcher: Launcher, machine: Machine, num_trials: int, configs: Sequence[Config]
) -> int:
    """Return the number of trials that may run in parallel.

    `auto` is limited by the GPUs, or by the cores divided by the workers of a trial. Raises
    ConfigError if launcher.parallel is larger.
    """
    uses_gpus = any(_uses_gpus(config, machine) for config in configs)
    num_devices = len(machine.gpus) if uses_gpus else len(machine.cores)
    if launcher.parallel != "auto":
        if launcher.parallel > num_devices:
            device_count = plural(num_devices, "GPU" if uses_gpus else "core")
            raise config_error(
                "machine",
                f"launcher.parallel={launcher.parallel}",
                f", but this machine has {device_count}",
                f"use at most {num_devices}",
            )
        return launcher.parallel
    min_workers = 1 if uses_gpus else min(_num_cpu_workers(config) for config in configs)
    return max(1, min(num_devices // min_workers, num_trials))


def need(config: Config, machine: Machine, num_parallel: int) -> Need:
    """Return the devices of a trial if `num_parallel` of them run.

    Raises ConfigError for missing GPUs.
    """
    devices = config.trainer.devices
    if not _uses_gpus(config, machine):
        return Need(_num_cpu_workers(config), ())
    num_gpus = len(machine.gpus)
    key, problem = f"trainer.devices={devices}", f", but this machine has {plural(num_gpus, 'GPU')}"
    if isinstance(devices, list):
        if max(devices) >= num_gpus:
            raise config_error("machine", key, problem, "use smaller numbers")
        return Need(len(devices), tuple(devices))
    if devices == "auto":
        devices = 1 if config.strategy.name == "single_device" else max(1, num_gpus // num_parallel)
    if devices > num_gpus:
        raise config_error("machine", key, problem, f"use at most {num_gpus}")
    return Need(devices, devices)


def _uses_gpus(config: Config, machine: Machine) -> bool:
    return bool(machine.gpus) and config.strategy.name != "cpu"


def _num_cpu_workers(config: Config) -> int:
    devices = config.trainer.devices
    if devices == "auto":
        return 1
    return len(devices) if isinstance(devices, list) else devices


@dataclass
class Devices:
    """The devices of the machine, and those that trials hold.

    A core belongs to one CPU trial at a time.
    """

    machine: Machine
    num_parallel: int
    used_slots: list[DeviceSlot] = field(default_factory=list)

    def take(self, need: Need) -> DeviceSlot | None:
        """Take devices that no other trial holds, or return None while too few are free."""
        if len(self.used_slots) >= self.num_parallel:
            return None
        slot = self._gpus(need) if need.gpus else self._cores(need)
        if slot is not None:
            self.used_slots.append(slot)
        return slot

    def _cores(self, need: Need) -> DeviceSlot | None:
        busy_cores = {core for slot in self.used_slots for core in slot.cores}
        free_cores = [core for core in self.machine.cores if core not in busy_cores]
        num_cores = len(self.machine.cores)
        count = min(num_cores, max(need.num_workers, num_cores // self.num_parallel))
        slot = DeviceSlot((), tuple(free_cores[:count]), max(1, count // need.num_workers), False)
        return slot if len(free_cores) >= count else None

    def _gpus(self, need: Need) -> DeviceSlot | None:
        busy_gpus = {gpu for slot in self.used_slots for gpu in slot.gpus}
        num_threads = max(1, len(self.machine.cores) // (self.num_parallel * need.num_workers))
        if isinstance(need.gpus, tuple):
            gpus = tuple(self.machine.gpus[position] for position in need.gpus)
            return None if busy_gpus & {*gpus} else DeviceSlot(gpus, (), num_threads, True)
        gpus = tuple(gpu for gpu in self.machine.gpus if gpu not in busy_gpus)[: need.gpus]
        return DeviceSlot(gpus, (), num_threads, False) if len(gpus) == need.gpus else None

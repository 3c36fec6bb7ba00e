"""The worker processes a configuration asks for, against what this machine and an outer launcher offer."""

import os
import shutil
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path

from lockstep.config import slurm_rules
from lockstep.config.schema import Config
from lockstep.runs.naming import training_command
from lockstep.system import hardware, launcher
from lockstep.system.wording import plural

# a worker holds less than that of its own (private pages of smaps_rollup, one thread, torch 2.15)
WORKER_BYTES = 2**29
# more processes than that on a core do nothing but wait; a few show what many workers compute
PROCESSES_PER_CORE = 16


@dataclass(frozen=True)
class Workers:
    """Where a run trains: `gpus` has the GPU of each worker of this node, as that worker counts; () for CPU processes.

    They are all different where the workers see the same GPUs, and all 0 where each sees GPUs of its own. `errors` says
    what the machine, or the launcher that started this process, cannot give of it.
    """

    num_local: int
    num_nodes: int
    gpus: tuple[int, ...]
    errors: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def world_size(self) -> int:
        """Worker processes on all nodes."""
        return self.num_local * self.num_nodes


@dataclass(frozen=True)
class Machine:
    """What a machine offers, and the launcher that started this process, if one did."""

    num_gpus: int
    num_cores: int
    memory_bytes: int
    has_compiler: bool
    world: launcher.World | None


def this_machine(*, asks_for_gpus: bool = True) -> Machine:
    """The machine of this process, without its GPUs where nobody asks for them: some tell only through torch."""
    return Machine(
        num_gpus=hardware.num_visible_gpus() if asks_for_gpus else 0,
        num_cores=hardware.num_cores(),
        memory_bytes=hardware.memory_bytes(),
        has_compiler=any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))),
        world=launcher.outer_world(os.environ),
    )


def resolve_workers(config: Config, machine: Machine | None = None) -> Workers:
    """The workers of a configuration, with all that `machine` cannot give as their `errors`; by default this machine.

    The machine of a SLURM job is not this one: what it gives is looked at there.
    """
    is_job = config.cluster.name == "slurm"
    machine = machine or this_machine(asks_for_gpus=config.strategy.name != "cpu" and not is_job)
    workers = _allocated(config) if is_job else _asked(config, machine)
    errors = list(workers.errors)
    if not is_job:
        errors += _world_errors(workers, machine.world)
        if machine.world is None:
            errors += _number_errors(config, workers, machine)
    errors = (errors or _load_errors(config, workers)) + _device_errors(config, workers)
    if not is_job:
        errors += _compiler_errors(config, workers, machine)
    return replace(workers, errors=tuple(errors))


def interface_errors(config: Config) -> list[str]:
    """A network this machine has not. Only the machines that train can tell, not the one a job is submitted from."""
    name, interfaces = config.strategy.interface, [name for _, name in socket.if_nameindex()]
    if name is None or name in interfaces:
        return []
    return [
        f"strategy.interface={name} is not on {socket.gethostname()}, which has {', '.join(interfaces)}: "
        "use one of these, or null"
    ]


def _asked(config: Config, machine: Machine) -> Workers:
    """The workers that devices and strategy ask for, on this machine and its launcher."""
    devices, name = config.trainer.devices, config.strategy.name
    world = machine.world
    num_gpus = 0 if name == "cpu" else machine.num_gpus
    setting = f"trainer.devices={devices}".replace(" ", "")
    errors = []
    gpus: tuple[int, ...] = ()
    if isinstance(devices, list):
        absent = [number for number in devices if number >= num_gpus]
        if name == "cpu":
            errors.append(f"{setting} names GPUs, but strategy=cpu uses none: give a number of processes")
        elif not devices or len(set(devices)) != len(devices):
            errors.append(f"{setting} must list each GPU once, and at least one")
        elif _each_has_own(world, num_gpus, len(devices)):
            hint = f"use trainer.devices={len(devices)}"
            errors.append(f"{setting} names GPUs, but srun gives each task its own, which is number 0 to it: {hint}")
        elif absent:
            hint = f"use numbers from 0 to {num_gpus - 1}" if num_gpus else f"use trainer.devices={len(devices)}"
            errors.append(f"{setting}, but this machine has {_gpus(num_gpus)}: {hint}")
        gpus, num_local = tuple(devices), len(devices)
    elif devices == "auto":
        num_local = 1 if name == "single_device" else max(1, num_gpus)
        if world is not None and world.world_size % config.trainer.num_nodes == 0:
            num_local = world.world_size // config.trainer.num_nodes
        gpus = _one_each(world, num_gpus, num_local)
        if world is not None and num_gpus and max(gpus) >= num_gpus:
            gpu_hint = "give each a GPU of its own (srun --gpus-per-task=1), " if world.launcher == "srun" else ""
            errors.append(
                f"{world.launcher} started {num_local} workers for a machine with {_gpus(num_gpus)}: start {num_gpus}, "
                f"{gpu_hint}set trainer.num_nodes if they are on several machines, or choose strategy=cpu"
            )
    else:
        num_local = devices
        gpus = _one_each(world, num_gpus, num_local)
        if num_gpus and max(gpus) >= num_gpus:
            errors.append(
                f"{setting}, but this machine has {_gpus(num_gpus)}: "
                f"use trainer.devices={num_gpus}, or strategy=cpu for {devices} CPU processes"
            )
    workers = Workers(num_local, config.trainer.num_nodes, gpus)
    return replace(workers, errors=(*errors, *_single_errors(config, workers)))


def _one_each(world: launcher.World | None, num_gpus: int, num_local: int) -> tuple[int, ...]:
    """The GPU of each worker of this node; numbers that do not exist where there are too few."""
    if not num_gpus:
        return ()
    if _each_has_own(world, num_gpus, num_local):
        return (0,) * num_local
    # one number beyond the last GPU is enough for the error; a person may have asked for billions
    return tuple(range(min(num_local, num_gpus + 1)))


def _each_has_own(world: launcher.World | None, num_gpus: int, num_local: int) -> bool:
    """Whether every task of srun sees `num_gpus` GPUs that no other task sees (--gpus-per-task), numbered from 0.

    Then the step has at least as many on this node as its tasks see together. Where all tasks see the same GPUs, it has
    just those. SLURM_GPUS_PER_TASK does not tell: a step inherits it from its job, and may ask otherwise.
    """
    total = world.num_gpus_on_node if world is not None else None
    return total is not None and num_local > 1 and 0 < num_gpus * num_local <= total


def _allocated(config: Config) -> Workers:
    """The workers of a job."""
    num_local, errors = slurm_rules.num_workers(config)
    workers = Workers(num_local, config.trainer.num_nodes, tuple(range(slurm_rules.num_gpus(config))))
    return replace(workers, errors=tuple(errors or _single_errors(config, workers)))


def _single_errors(config: Config, workers: Workers) -> list[str]:
    if config.strategy.name != "single_device" or workers.world_size == 1:
        return []
    return [f"strategy=single_device has one worker, not {workers.world_size}: use strategy=ddp, or one device"]


def _gpus(count: int) -> str:
    return plural(count, "GPU") if count else "no GPUs"


def _device_errors(config: Config, workers: Workers) -> list[str]:
    """What only GPUs have, and what they cannot do."""
    if workers.gpus:
        return _graph_errors(config, workers)
    settings = (
        (config.strategy.process_group_backend == "nccl", "strategy.process_group_backend=nccl", "auto or gloo"),
        (config.trainer.precision == "tf32", "trainer.precision=tf32", "float32"),
    )
    return [f"{typed} needs GPUs, and this run uses none: use {hint}" for is_set, typed, hint in settings if is_set]


def _graph_errors(config: Config, workers: Workers) -> list[str]:
    """CUDA graphs that give wrong gradients (pytorch issues 96693 and 169545), or that nobody has seen to end."""
    if config.compile != "reduce-overhead":
        return []
    errors, num_parts = [], config.trainer.accumulate_grad_batches
    if num_parts > 1:
        errors.append(
            f"compile=reduce-overhead and trainer.accumulate_grad_batches={num_parts}: a CUDA graph overwrites the "
            "gradients of the last micro-batch, use compile=true, or trainer.accumulate_grad_batches=1"
        )
    if workers.world_size > 1:
        errors.append(
            f"compile=reduce-overhead is for one GPU, not for {workers.world_size} workers: CUDA graphs of several can "
            "hang when one leaves, use compile=true, or trainer.devices=1"
        )
    return errors


def _compiler_errors(config: Config, workers: Workers, machine: Machine) -> list[str]:
    if not config.compile or workers.gpus or machine.has_compiler:
        return []
    asked_for = f"compile={str(config.compile).lower()}"
    return [f"{asked_for} needs a C++ compiler on a CPU, and there is none: install g++, or use compile=false"]


def _number_errors(config: Config, workers: Workers, machine: Machine) -> list[str]:
    """More processes than this machine can carry."""
    hint = "use fewer, or raise trainer.process_limit"
    bound, num_cores = config.trainer.process_limit, machine.num_cores
    by_cores = f"{PROCESSES_PER_CORE} for each of {plural(num_cores, 'core')}"
    most, reason = PROCESSES_PER_CORE * num_cores, f"worker processes, {by_cores}"
    memory = machine.memory_bytes
    if bound != "auto":
        most, reason = bound, ""
    elif memory // WORKER_BYTES < most:
        most = max(1, memory // WORKER_BYTES)
        reason = f"worker processes, {WORKER_BYTES / 2**30:.1f} GiB for each in {memory / 2**30:.1f} GiB of memory"
    errors = []
    if not workers.gpus and workers.num_local > most:
        limit = f"{most} {reason}" if reason else f"trainer.process_limit={most}"
        errors.append(f"trainer.devices={config.trainer.devices} is above {limit}: {hint}")
    num_decoding, most = getattr(config.data, "num_workers", "auto"), PROCESSES_PER_CORE * num_cores
    most = most if bound == "auto" else bound
    if not errors and isinstance(num_decoding, int):
        total = num_decoding * workers.num_local
        limit = f"{most}, {by_cores}" if bound == "auto" else f"trainer.process_limit={most}"
        if total > most:
            of_each = f" of each of {workers.num_local} workers" if workers.num_local > 1 else ""
            are = f"data.num_workers={num_decoding}{of_each} are {total} processes"
            errors.append(f"{are}, above {limit}: {hint}")
    return errors


def _load_errors(config: Config, workers: Workers) -> list[str]:
    loads, count = config.trainer.loads, workers.world_size
    if loads is None:
        return []
    typed = f"trainer.loads={loads}".replace(" ", "")
    if len(loads) != count:
        entries = plural(len(loads), "entry", "entries")
        return [f"{typed} has {entries} for {plural(count, 'worker')}: give one load for each"]
    if sum(loads) == 0:
        return [f"{typed}: at least one worker needs a load above 0"]
    return []


def _world_errors(workers: Workers, world: launcher.World | None) -> list[str]:
    n, script = workers.world_size, "train.py" if Path("train.py").is_file() else "-m lockstep train"
    what = f"trainer.devices={workers.num_local}" + (
        f" on trainer.num_nodes={workers.num_nodes}" if workers.num_nodes > 1 else ""
    )
    if world is None:
        if workers.num_nodes == 1:
            return []
        return [
            f"trainer.num_nodes={workers.num_nodes} needs a launcher on every node: "
            f"torchrun --nnodes={workers.num_nodes} --nproc-per-node={workers.num_local} "
            f"--rdzv-backend=c10d --rdzv-endpoint=HOST:29500 {script} ..., or srun"
        ]
    if world.world_size == n:
        return []
    if world.launcher == "torchrun":
        nodes = f"--nnodes={workers.num_nodes} " if workers.num_nodes > 1 else ""
        hint = f"torchrun {nodes}--nproc-per-node={workers.num_local} {script} ..."
    else:
        hint = f"srun --nodes={workers.num_nodes} --ntasks-per-node={workers.num_local} {training_command()} ..."
    started = plural(world.world_size, "process", "processes")
    return [f"{what} asks for {plural(n, 'worker')}, but {world.launcher} started {started}: start it with {hint}"]

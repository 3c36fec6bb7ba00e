"""Resolves the worker processes of a configuration, and checks them.

The check compares them with this machine and with the launcher that started this process.
"""

import os
import shutil
import socket
from dataclasses import dataclass, field, replace

from lockstep.config.errors import Error, Errors, literal
from lockstep.config.schema.configuration import Config
from lockstep.system import hardware, launcher
from lockstep.system.text import plural

# A worker needs less memory than this (private pages in smaps_rollup, one thread, torch 2.15).
WORKER_GIB = 0.5
# More processes on a core only wait, but a few show what many workers compute.
PROCESSES_PER_CORE = 16


@dataclass(frozen=True)
class Workers:
    """Workers of a run: `world_size` on all nodes, and `num_local` on this one.

    Other nodes may have more or fewer. `gpus` has the GPU of each worker of this node, by its
    number there, and is () for CPU processes. The numbers differ if all workers see the same GPUs,
    and are all 0 if each sees its own. `errors` describes what the machine, or the launcher that
    started this process, lacks.
    """

    world_size: int
    num_local: int
    num_nodes: int
    gpus: tuple[int, ...]
    errors: tuple[Error, ...] = field(default=(), compare=False, repr=False)


def resolve_workers(config: Config) -> Workers:
    """Return the workers of a configuration on this machine.

    For a SLURM job, these are the workers on the nodes that it requests.
    """
    if config.cluster.name == "slurm":
        from lockstep.config.checks import slurm_rules

        num_local, errors = slurm_rules.num_workers(config)
        num_nodes, gpus = config.trainer.num_nodes, tuple(range(slurm_rules.num_gpus(config)))
        workers = Workers(num_local * num_nodes, num_local, num_nodes, gpus)
        errors = errors or list(_single_errors(config, workers))
    else:
        world = launcher.outer_world(os.environ)
        workers, errors = _here(config, world)
        errors += _single_errors(config, workers)
        errors += _world_errors(workers, world)
        if world is None:
            errors += _number_errors(config, workers)
    errors = errors or list(_weight_errors(config, workers))
    errors += _device_errors(config, workers)
    if config.cluster.name != "slurm":
        errors += _compiler_errors(config, workers)
    return replace(workers, errors=tuple(errors))


def _here(config: Config, world: launcher.World | None) -> tuple[Workers, list[Error]]:
    """Return the workers on this machine and under its launcher, and errors.

    With trainer.devices=auto, all processes of a launcher are workers, on any number of nodes.
    """
    devices = config.trainer.devices
    num_nodes = config.trainer.num_nodes
    # Counting the GPUs may import torch.
    num_gpus = 0 if config.strategy.name == "cpu" else hardware.num_visible_gpus()
    if isinstance(devices, list):
        workers = Workers(len(devices) * num_nodes, len(devices), num_nodes, tuple(devices))
        return workers, list(_list_errors(config, devices, num_gpus, world))
    if devices != "auto":
        num_local = devices
    elif world is not None:
        num_local = world.num_local
    else:
        num_local = 1 if config.strategy.name == "single_device" else max(1, num_gpus)
    launched_by = world if devices == "auto" else None
    world_size = launched_by.world_size if launched_by is not None else num_local * num_nodes
    workers = Workers(world_size, num_local, num_nodes, _one_each(world, num_gpus, num_local))
    if max(workers.gpus, default=-1) < num_gpus:
        return workers, []
    gpus = plural(num_gpus, "GPU")
    if launched_by is None:
        return workers, [
            Error(
                "machine",
                f"trainer.devices={devices}",
                f", but this machine has {gpus}",
                f"use trainer.devices={num_gpus}, or strategy=cpu for {devices} CPU processes",
            )
        ]
    advice = "each with its own (srun --gpus-per-task=1), " * (launched_by.launcher == "srun")
    return workers, [
        Error(
            "machine",
            launched_by.launcher,
            f"started {num_local} workers on a machine with {gpus}",
            f"start {num_gpus}, {advice}or choose strategy=cpu",
        )
    ]


def _list_errors(
    config: Config, devices: list[int], num_gpus: int, world: launcher.World | None
) -> Errors:
    setting, count = f"trainer.devices={literal(devices)}", len(devices)
    hint = f"use trainer.devices={count}"
    if config.strategy.name == "cpu":
        yield Error(
            "conflict",
            setting,
            "names GPUs, but strategy=cpu uses none",
            "give a number of processes",
        )
    elif not devices or len(set(devices)) != count:
        yield Error("value", setting, "must list each GPU once, and at least one")
    elif _each_has_own(world, num_gpus, count):
        yield Error(
            "conflict", setting, "names GPUs, but srun gives each task its own, numbered 0", hint
        )
    elif not num_gpus:
        yield Error("machine", setting, ", but this machine has no GPUs", hint)
    elif max(devices) >= num_gpus:
        yield Error(
            "machine",
            setting,
            f", but this machine has {plural(num_gpus, 'GPU')}",
            f"use numbers from 0 to {num_gpus - 1}",
        )


def _one_each(world: launcher.World | None, num_gpus: int, num_local: int) -> tuple[int, ...]:
    """Return the GPU of each worker of this node.

    If there are too few GPUs, the result contains a number above the last GPU.
    """
    if not num_gpus:
        return ()
    if _each_has_own(world, num_gpus, num_local):
        return (0,) * num_local
    # The tuple is bounded, because the setting may be billions.
    return tuple(range(min(num_local, num_gpus + 1)))


def _each_has_own(world: launcher.World | None, num_gpus: int, num_local: int) -> bool:
    """Return whether each task of srun sees `num_gpus` GPUs that no other task sees.

    This is the effect of --gpus-per-task, and each task numbers its GPUs from 0. The step then has
    as many GPUs on this node as its tasks see together. If all tasks see the same GPUs, the step
    has just those. SLURM_GPUS_PER_TASK is not reliable, because a step inherits it from its job and
    may override it.
    """
    total = world.num_gpus_on_node if world is not None else None
    return total is not None and num_local > 1 and 0 < num_gpus * num_local <= total


def _single_errors(config: Config, workers: Workers) -> Errors:
    if config.strategy.name == "single_device" and workers.world_size != 1:
        yield Error(
            "conflict",
            "strategy=single_device",
            f"has one worker, not {workers.world_size}",
            "use strategy=ddp, or one device",
        )


def _device_errors(config: Config, workers: Workers) -> list[Error]:
    if workers.gpus:
        return _graph_errors(config, workers)
    precision = config.trainer.precision
    backend = config.strategy.process_group_backend
    settings = (
        (backend == "nccl", "strategy.process_group_backend=nccl", "auto or gloo"),
        (precision in ("float16", "tf32"), f"trainer.precision={precision}", "float32"),
        (config.trainer.graph is True, "trainer.graph=true", "auto"),
    )
    problem = "needs GPUs, and this run uses none"
    return [
        Error("conflict", setting, problem, f"use {hint}")
        for is_set, setting, hint in settings
        if is_set
    ]


def _graph_errors(config: Config, workers: Workers) -> list[Error]:
    """Refuse settings that a CUDA graph cannot capture: collectives of gloo, and empty shards."""
    if config.trainer.graph is not True:
        return []
    backend = config.strategy.process_group_backend
    worker_weights = config.trainer.worker_weights or []
    settings = {
        "compile=true": config.compile,
        f"strategy.process_group_backend={backend}": workers.world_size > 1 and backend == "gloo",
        f"trainer.worker_weights={literal(worker_weights)}": 0 in worker_weights,
    }
    hint = "remove one of them, or use trainer.graph=auto"
    return [
        Error("conflict", "trainer.graph=true", f"does not work with {setting}", hint)
        for setting, is_set in settings.items()
        if is_set
    ]


def _compiler_errors(config: Config, workers: Workers) -> Errors:
    compilers = (os.environ.get("CXX", "g++"), "clang++")
    if config.compile and not workers.gpus and not any(map(shutil.which, compilers)):
        yield Error(
            "not-installed",
            "compile=true",
            "needs a C++ compiler on a CPU",
            "install g++, or use compile=false",
        )


def _number_errors(config: Config, workers: Workers) -> Errors:
    limit = config.trainer.process_limit
    reason = f"trainer.process_limit={limit}"
    if limit == "auto":
        num_cores = hardware.num_cores()
        memory_gib = hardware.memory_bytes() / 2**30
        limit = min(PROCESSES_PER_CORE * num_cores, max(1, int(memory_gib / WORKER_GIB)))
        reason = (
            f"the limit of {limit} workers, {PROCESSES_PER_CORE} per core on "
            f"{plural(num_cores, 'core')} and {WORKER_GIB} GiB each in {memory_gib:.1f} GiB"
        )
    if not workers.gpus and workers.num_local > limit:
        setting = f"trainer.devices={workers.num_local}"
        hint = "use fewer, or raise trainer.process_limit"
        yield Error("machine", setting, f"is above {reason}", hint)


def _weight_errors(config: Config, workers: Workers) -> Errors:
    worker_weights, count = config.trainer.worker_weights, workers.world_size
    if worker_weights is None:
        return
    setting = f"trainer.worker_weights={literal(worker_weights)}"
    if len(worker_weights) != count:
        entries = plural(len(worker_weights), "entry", "entries")
        yield Error(
            "range",
            setting,
            f"has {entries} for {plural(count, 'worker')}",
            "give one weight for each worker",
        )
    elif sum(worker_weights) == 0:
        yield Error("value", setting, "has no weight above 0", "give one to at least one worker")


def _world_errors(workers: Workers, world: launcher.World | None) -> Errors:
    """Compare the workers with the processes that a launcher started, on all nodes and here."""
    num_workers, num_nodes, num_local = workers.world_size, workers.num_nodes, workers.num_local
    nodes_option = f"--nnodes={num_nodes} " if num_nodes > 1 else ""
    start = f"torchrun {nodes_option}--nproc-per-node={num_local}"
    nodes_setting = f" on trainer.num_nodes={num_nodes}" if num_nodes > 1 else ""
    setting = f"trainer.devices={num_local}{nodes_setting}"
    if world is not None and world.launcher == "srun":
        start = f"srun --nodes={num_nodes} --ntasks-per-node={num_local}"
    if world is None:
        if num_nodes > 1:
            yield Error(
                "missing",
                f"trainer.num_nodes={num_nodes}",
                "needs a launcher on every node",
                f"{start} --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 ..., or srun",
            )
    elif not world.num_local:
        yield Error(
            "missing",
            "LOCAL_WORLD_SIZE",
            "is not set",
            "give the number of processes here, or use torchrun",
        )
    elif world.world_size != num_workers:
        processes = plural(world.world_size, "process", "processes")
        yield Error(
            "conflict",
            setting,
            f"requires {plural(num_workers, 'worker')}, but {world.launcher} started {processes}",
            f"use {start} ...",
        )
    elif world.num_local != num_local:
        node_text = f"{world.launcher} started {world.num_local} on {socket.gethostname()}"
        yield Error(
            "conflict",
            setting,
            f"is for each node, but {node_text}",
            f"use trainer.devices=auto, or {start} ...",
        )

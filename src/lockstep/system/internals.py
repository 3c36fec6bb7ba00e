"""Access to private parts of torch; `trainer_internals` has those of Lightning.

Every function states why it is needed, and the consequence if a later version has moved the part; training continues.
"""

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

BatchNorm = _BatchNorm  # the base classes have no public name
InstanceNorm = _InstanceNorm


def shared_count() -> Iterator[int]:
    """Count from 0, each number on one rank: the first that asks for it.

    Without the store of the process group the ranks take turns.
    """
    if not dist.is_initialized():
        return itertools.count()
    if (found := store()) is None:
        return itertools.count(dist.get_rank(), dist.get_world_size())
    return (found.add("lockstep count", 1) - 1 for _ in itertools.count())


def store() -> Any:
    """Return the store of the process group, which has no public name; None if torch has moved it."""
    find = getattr(dist.distributed_c10d, "_get_default_store", None)
    return find and find()


def unreached(model: DistributedDataParallel) -> list[int]:
    """Return the positions, among the trained parameters, for whose gradients `model` waits after a backward pass.

    torch names them only in an error. If it is another one, it is raised, as before the next pass.
    """
    check = getattr(model.reducer, "_check_reducer_finalized", lambda: None)
    try:
        check()
    except RuntimeError as error:
        found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
        if found is None:
            raise
        return [int(position) for position in found[1].split()]
    return []


def has_hooks(layers: Iterable[nn.Module]) -> bool:
    """Return True if a layer has hooks, which the replay of a CUDA graph does not call.

    torch has no public way to find them. Otherwise they are called only in the capture.
    """
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(layer, name, None) for layer in layers for name in names)


def end_allocations(pool: Any) -> None:
    """End a capture for the allocator, which torch 2.11 to 2.14 forget if the capture fails.

    Otherwise an allocation that fails later does not free the memory that the allocator keeps, and tries no more.
    """
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)
    with contextlib.suppress(RuntimeError):  # it has ended
        if end is not None:
            end(torch.cuda.current_device(), pool)


def can_skip_update(optimizer: Optimizer) -> bool:
    """Return True if the fused update skips the step where `found_inf` is set, as for torch's GradScaler.

    Otherwise the loss guard reads every loss before the backward pass, which waits for the GPU.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def add_summary(writer: Any, summary: Any) -> None:
    """Write a summary for which torch's SummaryWriter has no method, such as the start of a hyperparameter session.

    Otherwise the page of hyperparameters stays empty.
    """
    files = getattr(writer, "_get_file_writer", None)
    if files is not None:
        files().add_summary(summary)

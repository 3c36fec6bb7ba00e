"""All access to private parts of Lightning and torch, enforced by tests/unit/test_architecture.py.

The exception is callbacks/average.py, for the class that it extends. Every function states why it is needed, and the
consequence if a later version has moved the part; training continues.
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

BatchNorm = _BatchNorm  # the base classes have no public name
InstanceNorm = _InstanceNorm


def keep_signals(trainer: L.Trainer) -> None:
    """Disable the signal handlers of Lightning: that of SIGTERM hangs in a broadcast if only one rank received it.

    Otherwise they are active until the stop callback replaces them at the start of the training.
    """
    connector: Any = getattr(trainer, "_signal_connector", None)
    if hasattr(connector, "register_signal_handlers"):
        connector.register_signal_handlers = _do_nothing


def silence_broadcast(trainer: L.Trainer) -> None:
    """Disable Lightning's blocking broadcast of a SIGTERM of rank 0 before every batch.

    Otherwise each step has one collective more than the exchange of the stop callback, which does not block.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    if hasattr(loop, "_broadcast_sigterm_tensor"):
        loop._broadcast_sigterm_tensor = _do_nothing


def _do_nothing() -> None:
    return None


def set_global_step(trainer: L.Trainer, step: int) -> None:
    """Set the step count of a trainer that has trained nothing, for the curves; otherwise its points are at 0."""
    loop = getattr(trainer.fit_loop.epoch_loop, "manual_optimization", None)
    progress: Any = getattr(loop, "optim_step_progress", None)
    if hasattr(progress, "total"):
        progress.total.completed = step


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
    check = getattr(model.reducer, "_check_reducer_finalized", _do_nothing)
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


class OneStream(DDPStrategy):
    """Wraps the model on the CUDA stream of the training.

    `on_wrapped` is called with the wrapped model; what it returns is called after every averaging backward pass.

    Lightning 2.6 wraps it on a separate stream, for CUDA graphs. Then every gradient waits for an event of that stream
    in each backward pass, and torch warns about it.
    """

    def __init__(self, *, on_wrapped: Callable[[DistributedDataParallel], Callable[[], None]], **settings: Any) -> None:
        super().__init__(**settings)
        self._on_wrapped = on_wrapped
        self._complete = _do_nothing

    @override
    def _setup_model(self, model: nn.Module) -> DistributedDataParallel:
        settings = getattr(self, "_ddp_kwargs", None)
        if settings is None:
            return super()._setup_model(model)
        return DistributedDataParallel(module=model, device_ids=self.determine_ddp_device_ids(), **settings)

    @override
    def setup(self, trainer: L.Trainer) -> None:
        super().setup(trainer)
        if isinstance(self.model, DistributedDataParallel):
            self._complete = self._on_wrapped(self.model)

    @override
    def post_backward(self, closure_loss: Tensor) -> None:
        super().post_backward(closure_loss)
        self._complete()


def add_summary(writer: Any, summary: Any) -> None:
    """Write a summary for which torch's SummaryWriter has no method, such as the start of a hyperparameter session.

    Otherwise the page of hyperparameters stays empty.
    """
    files = getattr(writer, "_get_file_writer", None)
    if files is not None:
        files().add_summary(summary)

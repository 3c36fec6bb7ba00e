"""Compute the same bits on any number of workers.

Each virtual shard computes what a worker with this shard would compute.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from typing_extensions import override

from lockstep.distributed.batch import Batch
from lockstep.distributed.batch_norm import ExactBatchNorm
from lockstep.distributed.collectives import broadcast
from lockstep.distributed.virtual_shards import VirtualShards
from lockstep.models.step import OptimizerStep

T = TypeVar("T")
Module = TypeVar("Module", bound=nn.Module)


class VirtualParts(Generic[Module]):
    """The virtual shards of this process in a training and its evaluations.

    Each shard computes with a copy of the module. The first of these `modules` is the module
    itself. Copies share its weights. They have their own gradients, buffers, counts and metrics, so
    that a layer of any type sees only one virtual shard. `make_copy` makes a copy.
    """

    def __init__(
        self, module: Module, shards: VirtualShards, make_copy: Callable[[], Module]
    ) -> None:
        self.shards = shards
        self.modules: list[Module] = []
        self._module = module
        self._make_copy = make_copy
        self._losses: list[Tensor] = []
        # If true, the gradients are those of the last step, which are not needed any more.
        self._is_joined = False
        self._norms = ExactBatchNorm()

    def start(self) -> None:
        """Begin a fit with the same weights on all ranks."""
        module = self._module
        self._norms.apply(module)
        if dist.is_initialized():
            broadcast([*module.parameters(), *module.buffers()])  # DDP does the same.
        self._copy()

    def _copy(self) -> None:
        self.modules = [self._module]
        while len(self.modules) < self.shards.num_parts:
            self.modules.append(self._make_copy())

    def each(self, work: Callable[[Module], T]) -> list[T]:
        """Call `work` with the module of each virtual shard, in its thread."""
        if len(self.modules) != self.shards.num_parts:
            self._copy()
        return self.shards.run(lambda shard: work(self.modules[shard]))

    def each_part(self, work: Callable[[Module, Batch], T], batch: Batch) -> list[T]:
        """Call `work` with the module and the batch of each virtual shard, in its thread."""
        if len(self.modules) != self.shards.num_parts:
            self._copy()
        shard_batches = self.shards.split(batch)
        for module in self.modules[1:]:
            _follow(module, self._module)
        return self.shards.run(lambda shard: work(self.modules[shard], shard_batches[shard]))

    def loss(self, work: Callable[[Module, Batch], Tensor], batch: Batch) -> Tensor:
        """Return the sum of the losses of the virtual shards.

        Its backward pass runs that of each virtual shard, in its thread.
        """
        self._losses = self.each_part(work, batch)
        total = torch.stack([loss.detach() for loss in self._losses]).sum().requires_grad_()
        return _Joined.apply(total, self._go_back)  # pyright: ignore[reportReturnType]

    def _go_back(self, gradient: Tensor) -> None:
        losses, self._losses = self._losses, []
        # They are freed only here, as in `OptimizerStep.backward`, because freeing them before the
        # forward pass would fragment memory.
        if self._is_joined:
            for module in self.modules[1:]:
                module.zero_grad()
        self._is_joined = False
        self.shards.run(lambda shard: losses[shard].backward(gradient))

    def join_gradients(self) -> None:
        """Give the module the mean gradients of all virtual shards. Every rank must call it."""
        gradients = [
            [parameter.grad for parameter in module.parameters()] for module in self.modules
        ]
        self.shards.average(list(self._module.parameters()), gradients)
        self._is_joined = True

    def optimizer_step(self, *arguments: Any, **settings: Any) -> OptimizerStep:
        return _VirtualStep(self, *arguments, **settings)

    def drop(self) -> None:
        """End a fit, by restoring the norms of the module and freeing the copies."""
        self._norms.revert(self._module)
        self.modules = []


class _VirtualStep(OptimizerStep):
    def __init__(self, virtual_parts: VirtualParts[Any], *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._world_size = virtual_parts.shards.count
        self._join_gradients = virtual_parts.join_gradients

    @override
    def finish_backward(self, loss: Tensor) -> None:
        self._join_gradients()


class _Joined(torch.autograd.Function):
    """The identity function, whose backward pass calls a function with the gradient."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, go_back: Callable[[Tensor], None]) -> Tensor:
        ctx.go_back = go_back
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.go_back(gradients[0])
        return None, None


def _follow(module: nn.Module, original: nn.Module) -> None:
    """Give a copy the weights, buffers and modes of the module, which a callback may change."""
    for target, source in zip(module.parameters(), original.parameters(), strict=True):
        target.data = source.data
        target.requires_grad_(source.requires_grad)
    with torch.no_grad():
        for target, source in zip(module.buffers(), original.buffers(), strict=True):
            target.copy_(source)
    for target, source in zip(module.modules(), original.modules(), strict=True):
        target.training = source.training

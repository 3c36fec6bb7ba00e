"""A classifier with the same bits on any number of workers: that of a worker for each virtual shard."""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from typing_extensions import override

from lockstep.distributed.batch import Batch
from lockstep.distributed.batch_norm import ExactBatchNorm
from lockstep.distributed.broadcast import broadcast
from lockstep.distributed.virtual_shards import VirtualShards
from lockstep.models.classifier import Classifier
from lockstep.models.step import OptimizerStep

T = TypeVar("T")


class VirtualClassifier(Classifier):
    """Trains and evaluates by the virtual shards of this process, each on a copy of the module in its thread.

    The first of these `parts` is the module itself. Copies share its weights. Gradients, buffers, counts and metrics
    are their own, so that a layer of any kind sees one virtual shard only.
    """

    caches_casts = False  # autocast has one cache for all threads: a weight would be cast once or twice, by chance

    def __init__(self, *args: Any, shards: VirtualShards, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.step_class = _VirtualStep
        self.shards = shards
        self.parts: list[Classifier] = []
        self._losses: list[Tensor] = []
        self._is_joined = False  # the gradients of the last step, which are of no use any more
        self._counts: dict[str, Any] | None = None  # of all virtual shards, from a checkpoint
        self._norms = ExactBatchNorm()

    @override
    def on_fit_start(self) -> None:
        self._norms.apply(self)
        if dist.is_initialized():
            broadcast([*self.parameters(), *self.buffers()])  # as DDP does
        self._copy()
        if self._counts is not None:
            for module, number in zip(self.parts, self.shards.own, strict=False):
                module.counts.load_state_dict(self._counts, rank=number, world_size=self.shards.count)

    def _copy(self) -> None:
        """Make the module of each part."""
        self.parts = []
        copies: list[Classifier] = []
        for _ in range(1, self.shards.num_parts):
            shared = (self.parts, self.trainer, self._step, self._guard)
            known: dict[int, Any] = {id(each): each for each in shared}
            for parameter in self.parameters():
                known[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
            copies.append(copy.deepcopy(self, known))
            copies[-1].counts.own.zero_()
        self.parts = [self, *copies]

    def _each(self, work: Callable[[Classifier, int], T]) -> list[T]:
        """Call `work` with the module and the place of each part, in its thread."""
        if len(self.parts) != self.shards.num_parts:
            self._copy()
        return self.shards.run(lambda place: work(self.parts[place], place))

    def _each_part(self, work: Callable[[Classifier, Batch], T], batch: Batch) -> list[T]:
        parts = self.shards.cut(batch)
        for module in self.parts[1:]:
            _follow(module, self)
        return self._each(lambda module, place: work(module, parts[place]))

    @override
    def scaled_loss(self, batch: Batch) -> Tensor:
        """Return the sum of the losses of the parts, whose backward pass is that of each part in its thread."""
        self._losses = self._each_part(Classifier.scaled_loss, batch)
        total = torch.stack([loss.detach() for loss in self._losses]).sum().requires_grad_()
        return _Joined.apply(total, self._go_back)  # pyright: ignore[reportReturnType]

    def _go_back(self, gradient: Tensor) -> None:
        losses, self._losses = self._losses, []
        if self._is_joined:  # freed only here, as by the step: before the forward pass they would fragment memory
            for parameter in (each for module in self.parts[1:] for each in module.parameters()):
                parameter.grad = None
        self._is_joined = False
        self.shards.run(lambda place: losses[place].backward(gradient))

    def join_gradients(self) -> None:
        """Give the module the mean gradients of all virtual shards. Every rank must call it."""
        gradients = [[parameter.grad for parameter in module.parameters()] for module in self.parts]
        self.shards.average(list(self.parameters()), gradients)
        self._is_joined = True

    @override
    def gradient_factor(self, num_samples: int) -> Tensor | None:
        if self._weight_sum is None:
            return None
        return self._each(lambda module, place: Classifier.gradient_factor(module, num_samples))[0]

    @override
    def epoch_sums(self, *, is_end: bool) -> tuple[Tensor, Tensor]:
        return self._each(lambda module, place: Classifier.epoch_sums(module, is_end=is_end))[0]

    @override
    def on_train_start(self) -> None:
        super().on_train_start()
        for module in self.parts[1:]:
            module.counts.to(self.device)

    @override
    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        return _join(self._each_part(lambda module, part: Classifier.validation_step(module, part, batch_idx), batch))

    @override
    def test_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        return _join(self._each_part(lambda module, part: Classifier.test_step(module, part, batch_idx), batch))

    @override
    def on_validation_epoch_start(self) -> None:
        self._each(lambda module, place: Classifier.on_validation_epoch_start(module))

    @override
    def on_test_epoch_start(self) -> None:
        self._each(lambda module, place: Classifier.on_test_epoch_start(module))

    @override
    def global_scores(self, split: str, num_samples: int) -> dict[str, float]:
        return self._each(lambda module, place: Classifier.global_scores(module, split, num_samples))[0]

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["train_counts"] = self._each(lambda module, place: module.counts.state_dict())[0]

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self._counts = checkpoint["train_counts"]

    @override
    def drop_graphs(self) -> None:
        super().drop_graphs()
        self._norms.revert(self)
        self.parts = []


class _VirtualStep(OptimizerStep):
    def __init__(self, module: VirtualClassifier, *args: Any, **settings: Any) -> None:
        super().__init__(module, *args, **settings)
        self._world_size = module.shards.count
        self._join_gradients = module.join_gradients

    @override
    def finish_backward(self, loss: Tensor) -> None:
        self._join_gradients()


class _Joined(torch.autograd.Function):
    """The identity, whose backward pass calls a function with the gradient."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, go_back: Callable[[Tensor], None]) -> Tensor:
        ctx.go_back = go_back
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.go_back(gradients[0])
        return None, None


def _follow(module: Classifier, first: Classifier) -> None:
    """Give a copy the weights, buffers and modes of the module: a callback may have changed them."""
    for own, source in zip(module.parameters(), first.parameters(), strict=True):
        own.data = source.data
        own.requires_grad_(source.requires_grad)
    with torch.no_grad():
        for own, source in zip(module.buffers(), first.buffers(), strict=True):
            own.copy_(source)
    for own, source in zip(module.modules(), first.modules(), strict=True):
        own.training = source.training


def _join(outputs: list[Tensor | None]) -> Tensor | None:
    found = [rows for rows in outputs if rows is not None]
    return torch.cat(found) if found else None

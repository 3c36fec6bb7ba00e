"""Average weights without a GPU synchronization in each step."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from typing_extensions import Doc, override

from lockstep.models.classifier import Checkpoint, Classifier
from lockstep.system.internals import average_of
from lockstep.system.types import Fraction


def exponential_average(decay: Annotated[Fraction, Doc("maximum decay of the average")]) -> Any:
    """Return an exponential moving average whose decay increases.

    After n updates, the decay is min(decay, (1 + n) / (10 + n)). With a constant decay, the average
    of a short training would be that of its first weights. The formula is that of TensorFlow's
    ExponentialMovingAverage with `num_updates`.
    """
    return partial(_move, decay)


def _move(decay: float, averages: list[Tensor], currents: list[Tensor], num_averaged: int) -> None:
    get_ema_multi_avg_fn(min(decay, (1 + num_averaged) / (10 + num_averaged)))(
        averages, currents, num_averaged
    )


class AveragedWeights(WeightAveraging):
    """Averages weights and buffers over optimizer steps, for validation, test and best.ckpt.

    `multi_avg_fn(averages, currents, num_averaged)` changes the list of averaged tensors in place,
    as `exponential_average(decay)` does. `num_averaged` counts the steps of the complete run before
    this one. Only floating-point and complex tensors are averaged, and others are copied. Unlike
    the update of torch, this one never reads the number of updates from the GPU. A step that is
    skipped because float16 overflowed does not change the average.
    """

    def __init__(self, *, multi_avg_fn: Callable[[list[Tensor], list[Tensor], Any], None]) -> None:
        super().__init__(use_buffers=True, multi_avg_fn=multi_avg_fn)

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if (average := average_of(self)) is not None:
            average.__class__ = _Average

    @override
    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint
    ) -> None:
        """Resume an average.

        Lightning (2.6) would also test the last weights in place of the averages of best.ckpt.
        """
        if trainer.state.fn == TrainerFn.FITTING:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)


class _Average(AveragedModel):
    # A copy of the number of updates on the host, read once, because a resumed run has an average.
    _num_averaged: int | None = None

    @override
    def update_parameters(self, model: nn.Module) -> None:
        if self._num_averaged is None:
            self._num_averaged = int(self.n_averaged)
        scale = model.loss_scale if isinstance(model, Classifier) else None
        is_skipped = None if scale is None else scale.overflowed > 0
        pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for average, current in zip(_tensors(self.module), _tensors(model), strict=True):
            if self._num_averaged and (average.is_floating_point() or average.is_complex()):
                averages, currents = pairs.setdefault(average.dtype, ([], []))
                averages.append(average)
                # In a skipped step, the average is averaged with itself, and stays the same.
                currents.append(
                    current if is_skipped is None else current.where(~is_skipped, average)
                )
            else:
                average.copy_(current)
        assert self.multi_avg_fn is not None
        for averages, currents in pairs.values():
            self.multi_avg_fn(averages, currents, self._num_averaged)
        self._num_averaged += 1
        self.n_averaged.fill_(self._num_averaged)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return (tensor.detach() for tensor in itertools.chain(module.parameters(), module.buffers()))

"""Averaged weights without a GPU synchronization in each step."""

import itertools
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override

from lockstep.models.classifier import Classifier


class AveragedWeights(WeightAveraging):
    """Averages weights and buffers over optimizer steps, for validation, test and best.ckpt.

    `multi_avg_fn(averages, currents, num_averaged)` changes the list of averaged tensors in place, such as torch's
    `get_ema_multi_avg_fn(decay)`. Unlike torch's own update, this one never reads the number of updates from the GPU.
    A step that is skipped because float16 overflowed changes no average.
    """

    def __init__(self, *, multi_avg_fn: Callable[[list[Tensor], list[Tensor], Any], None]) -> None:
        super().__init__(use_buffers=True, multi_avg_fn=multi_avg_fn)

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if self._average_model is not None:
            self._average_model.__class__ = _Average

    @override
    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Resume an average. Lightning (2.6) would also test the last weights in place of the averages of best.ckpt."""
        if trainer.state.fn == TrainerFn.FITTING:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)


class _Average(AveragedModel):
    _has_begun = False

    @override
    def update_parameters(self, model: nn.Module) -> None:
        if not self._has_begun:  # torch checks if these are the first weights, or a resumed run has an average
            super().update_parameters(model)
            self._has_begun = True
            return
        scale = model.loss_scale if isinstance(model, Classifier) else None
        is_skipped = None if scale is None else scale.overflowed > 0
        pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for average, current in zip(_tensors(self.module), _tensors(model), strict=True):
            averages, currents = pairs.setdefault(average.dtype, ([], []))
            averages.append(average.detach())
            # the average of an average and itself is the same
            currents.append(current.detach() if is_skipped is None else current.where(~is_skipped, average).detach())
        assert self.multi_avg_fn is not None
        for averages, currents in pairs.values():
            self.multi_avg_fn(averages, currents, self.n_averaged)
        self.n_averaged += 1 if is_skipped is None else ~is_skipped


def _tensors(module: nn.Module) -> itertools.chain[Tensor]:
    return itertools.chain(module.parameters(), module.buffers())

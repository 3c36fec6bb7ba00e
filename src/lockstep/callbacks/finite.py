"""A loss that is not a number ends the run before it can reach the weights."""

from typing import Any

import lightning as L
import torch
from torch import Tensor


class NonFiniteLoss(RuntimeError):
    """Names the step and the samples: what a person needs to look for the cause."""


class FiniteLoss(L.Callback):
    """Raises NonFiniteLoss before the backward pass of a step whose loss is NaN or infinite.

    The other ranks cannot finish that step without this one, so no rank applies it, and last.ckpt and best.ckpt stay.
    """

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep the batch for the message."""
        self._batch = batch

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Look at the loss of this rank's share."""
        if torch.isfinite(loss):
            return
        batch = self._batch
        raise NonFiniteLoss(
            f"The loss is {loss.item()} in optimizer step {trainer.global_step + 1} (epoch {batch.share.epoch + 1}, "
            f"micro-batch {batch.share.micro_step + 1}) on rank {trainer.global_rank}; nothing of this step was "
            f"applied. Training samples of the share: {batch.indices.tolist()}. A lower optimizer.lr, "
            "trainer.gradient_clip_norm=1 or trainer.precision=float32 may help."
        )

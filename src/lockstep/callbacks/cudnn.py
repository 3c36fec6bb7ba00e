"""cuDNN's search for the fastest plan of each convolution."""

from typing import Any

import lightning as L
import torch

NUM_PLANS = 4  # timed for each convolution; torch's default is 10, and some plans are compiled first


class CudnnSearch(L.Callback):
    """Lets cuDNN time its plans in whole global batches, whose shapes return in every step.

    Ragged batches and evaluations would search again for each of their shapes, and run too rarely to gain from it.
    """

    def __init__(self, global_batch_size: int) -> None:
        self._global_batch_size = global_batch_size
        torch.backends.cudnn.benchmark_limit = NUM_PLANS

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        torch.backends.cudnn.benchmark = batch.shard.group_size == self._global_batch_size

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        torch.backends.cudnn.benchmark = False

"""Callbacks a test needs in a run of another process."""

import os
import time
from typing import Any

import lightning as L


class SlowAtFirst(L.Callback):
    """Every step takes `step_s` more, until the run goes on from a checkpoint: a test has time to cut it."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.ckpt_path is None and "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(self._step_s)

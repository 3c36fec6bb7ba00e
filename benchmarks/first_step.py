"""A callback that writes down when the first step was done."""

import time
from pathlib import Path
from typing import Any

import lightning as L


class FirstStep(L.Callback):
    """Writes the seconds since 1970 to `path` after the first training step."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Write the time after the first batch, and never again."""
        if trainer.is_global_zero and not self._path.exists():
            self._path.write_text(str(time.time()))

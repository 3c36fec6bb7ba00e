"""What a training has imported of Lockstep at its first step. Imports nothing of it itself."""

import json
import sys
from pathlib import Path
from typing import Any

import lightning as L


class Imported(L.Callback):
    """Write the modules, with their lines, to the file `path` before the first step."""

    def __init__(self, *, path: str) -> None:
        self._path = Path(path)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        ours = {
            name: module
            for name, module in [*sys.modules.items()]
            if name.partition(".")[0] in ("lockstep", "hydra_plugins") and getattr(module, "__file__", None)
        }
        lines = {name: len(Path(str(module.__file__)).read_text().splitlines()) for name, module in ours.items()}
        if not self._path.exists():
            self._path.write_text(json.dumps(lines))

"""How checkpoints reach the disk: whole or not at all, and each as a file of its own."""

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO

from lockstep.run_folder import atomic_file


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary name in the same folder and renames; Lightning's own goes through the system's /tmp.

    A state that is the last and the best is written twice: what damages one file leaves the other.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write `checkpoint` to `path`, replacing what is there. Called on rank 0."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as file:
            torch.save(checkpoint, file)

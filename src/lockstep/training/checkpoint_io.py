"""Atomic writing of checkpoints."""

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from typing_extensions import override

from lockstep.runs.files import atomic_file


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary name in the same folder and renames; Lightning's own goes through the system's /tmp.

    A state that is both the last and the best is written twice: damage to one file leaves the other whole.
    """

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with atomic_file(target) as file:
                torch.save(checkpoint, file)
        except RuntimeError as error:  # torch's own, in place of the system's, which has no file name
            if isinstance(error.__context__, OSError):
                error.__context__.filename = str(target)
            raise

"""How checkpoints reach the disk: whole or not at all, and each as a file of its own."""

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from typing_extensions import override

from lockstep.runs.files import atomic_file


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary name in the same folder and renames; Lightning's own goes through the system's /tmp.

    A state that is the last and the best is written twice: what damages one file leaves the other.
    """

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write `checkpoint` to `path`, replacing what is there. Called on rank 0."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with atomic_file(target) as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:  # torch reports the position of a file that could not be written
            refused = error if isinstance(error, OSError) else error.__context__
            if isinstance(refused, OSError):
                refused.filename = str(target)
                refused.add_note(f"{_num_bytes(checkpoint) / 2**20:,.1f} MiB")
            raise


def _num_bytes(value: Any) -> int:
    """Bytes of all tensors in a checkpoint, nearly all of the file."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(map(_num_bytes, parts))

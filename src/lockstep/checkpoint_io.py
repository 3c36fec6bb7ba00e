"""How checkpoints reach the disk: whole or not at all, and once even when they are the last and the best in one."""

import os
import secrets
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO

from lockstep.run_folder import atomic_file


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary name in the same folder and renames; Lightning's own goes through the system's /tmp.

    A state that was just written is hard-linked under its second name instead of written again.
    """

    def __init__(self) -> None:
        self._written: tuple[Path, Any] | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write `checkpoint` to `path`, replacing what is there. Called on rank 0."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        progress = (checkpoint["global_step"], checkpoint["loops"])
        if self._written is not None and self._written[1] == progress and _link(self._written[0], target):
            return
        with atomic_file(target) as file:
            torch.save(checkpoint, file)
        self._written = (target, progress)


def _link(source: Path, target: Path) -> bool:
    """Give `source` a second name, atomically; False where the file system has no hard links."""
    if source == target:
        return source.exists()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        os.link(source, temporary)
        os.replace(temporary, target)
    except OSError:
        return False
    finally:
        # rename(2) does nothing, and leaves it, where `target` is a name of the same file already
        temporary.unlink(missing_ok=True)
    return True

"""Atomic writing of checkpoints, on a GPU by a thread while the training continues."""

import copy
import os
from collections.abc import Collection
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from torch import Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from lockstep.models.classifier import Checkpoint
from lockstep.runs.files import atomic_file


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary name in the same folder, and renames the file.

    Lightning's checkpoint IO goes through the system's /tmp. A state that is both the last and the
    best is written twice, so that damage to one file leaves the other intact.

    Files in `behind` are written by `thread`, which has one worker, from a copy in page-locked
    memory. A later state is saved only after them, so a kill costs at most one state, as without a
    thread. The end of a fit therefore waits for them, also after an error. An error of the thread
    is raised there, or before the next state.
    """

    def __init__(self, thread: Executor, behind: Collection[Path]) -> None:
        self._thread = thread
        self._behind = behind
        self._state = -1  # global step of the files that are being written
        self._pending: list[Future[None]] = []

    @override
    def save_checkpoint(
        self, checkpoint: Checkpoint, path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        target = Path(path)
        if checkpoint["global_step"] != self._state:
            self.teardown()
            self._state = checkpoint["global_step"]
        if target in self._behind:
            self._pending.append(self._thread.submit(write, _snapshot(checkpoint), target))
        else:
            write(checkpoint, target)

    @override
    def teardown(self) -> None:
        """Wait for the thread. Lightning calls it at the end of a fit, also after an error."""
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()


def read(path: Path) -> Checkpoint:
    """Read a checkpoint into host memory. Nothing in it is executed."""
    return torch.load(path, map_location="cpu", weights_only=True)


def write(checkpoint: Checkpoint, target: Path) -> None:
    """Replace the checkpoint at `target` atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_file(target) as file:
            torch.save(checkpoint, file)
    # This error of torch replaces that of the system, and has no file name.
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            error.__context__.filename = str(target)
        # The context is another one if the error of a thread is raised again.
        raise error from error.__context__


def _snapshot(checkpoint: Checkpoint) -> Checkpoint:
    """Copy a checkpoint, with its tensors on a GPU in page-locked memory."""
    with _ToHost():
        snapshot = copy.deepcopy(checkpoint)
    torch.cuda.current_stream().synchronize()
    return snapshot


class _ToHost(TorchFunctionMode):
    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and args[0].is_cuda:
            value = args[0].detach()
            return torch.empty_like(value, device="cpu", pin_memory=True).copy_(
                value, non_blocking=True
            )
        return func(*args, **(kwargs or {}))

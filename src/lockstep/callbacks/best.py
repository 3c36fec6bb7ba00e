"""Extend Lightning's ModelCheckpoint by the order of `runs/ranking.py`.

The order applies to equal and unusable values. The class has the name of its base, by which its
state is found in checkpoints. `training/observers.py` uses it in place of Lightning's.
"""

from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch import callbacks
from torch import Tensor
from typing_extensions import override

from lockstep.models.classifier import Checkpoint
from lockstep.runs.ranking import LOSS, rank


class ModelCheckpoint(callbacks.ModelCheckpoint):
    """Keeps the best epoch, or the last one of equally good epochs.

    Without any usable value, it keeps the last epoch of all. It saves the validation loss of the
    best epoch, and its number, counted from 0. If it `keeps_last`, the last epoch counts as best.
    """

    keeps_last = False
    _best_loss: float | None = None
    best_epoch: int | None = None

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "best_loss": self._best_loss, "best_epoch": self.best_epoch}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.best_epoch = state_dict.get("best_epoch")
        # Earlier versions did not save the loss. The next one of equally good epochs wins then.
        self._best_loss = state_dict.get("best_loss")

    @override
    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        loss = trainer.callback_metrics.get(LOSS)
        loss = None if loss is None else loss.item()
        if self.keeps_last:
            is_better = True
        elif (
            current is None
            or not self.best_k_models
            or not self.save_top_k == 1 == self.every_n_epochs
        ):
            is_better = super().check_monitor_top_k(trainer, current)
        else:
            is_max, best_score = self.mode == "max", self.best_k_models[self.best_model_path]
            new = rank(current.item(), loss, is_max=is_max)
            best = rank(best_score.item(), self._best_loss, is_max=is_max)
            # An epoch without a validation has the values of an earlier one.
            is_validated = (trainer.current_epoch + 1) % (trainer.check_val_every_n_epoch or 1) == 0
            is_better = trainer.strategy.reduce_boolean_decision(
                new < best or (new == best and is_validated)
            )
        if is_better:
            self._best_loss, self.best_epoch = loss, trainer.current_epoch
        return is_better


class Relocation(Callback):
    """Replaces the paths in the state of every ModelCheckpoint if a run resumes in another folder.

    Lightning 2.6.6 would forget the best score and all files but the best, with a warning. The next
    state, even a worse one, would then replace best.ckpt.
    """

    @override
    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint
    ) -> None:
        for callback in trainer.checkpoint_callbacks:
            state = checkpoint["callbacks"].get(callback.state_key, {})
            old_folder, new_folder = state.get("dirpath"), getattr(callback, "dirpath", None)
            if old_folder and new_folder and old_folder != new_folder:
                checkpoint["callbacks"][callback.state_key] = _relocate(
                    state, Path(old_folder), Path(new_folder)
                )


def _relocate(value: Any, old_folder: Path, new_folder: Path) -> Any:
    """Replace all paths below `old_folder` by paths below `new_folder`."""
    if isinstance(value, dict):
        return {
            _relocate(key, old_folder, new_folder): _relocate(inner, old_folder, new_folder)
            for key, inner in value.items()
        }
    if isinstance(value, str) and value and Path(value).is_relative_to(old_folder):
        return str(new_folder / Path(value).relative_to(old_folder))
    return value

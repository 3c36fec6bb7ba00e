"""Resume of a run whose folder was moved."""

from pathlib import Path
from typing import Any

import lightning as L
from typing_extensions import override


class Relocation(L.Callback):
    """Replaces the paths in the state of every ModelCheckpoint when a run resumes in another folder.

    Lightning 2.6.6 would forget the best score and all files but the best, with a warning: the next state, even a
    worse one, would replace best.ckpt.
    """

    @override
    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        for callback in trainer.checkpoint_callbacks:
            state = checkpoint["callbacks"].get(callback.state_key, {})
            before, now = state.get("dirpath"), getattr(callback, "dirpath", None)
            if before and now and before != now:
                checkpoint["callbacks"][callback.state_key] = _relocate(state, Path(before), Path(now))


def _relocate(value: Any, before: Path, now: Path) -> Any:
    """Replace all paths below `before` by paths below `now`."""
    if isinstance(value, dict):
        return {_relocate(key, before, now): _relocate(inner, before, now) for key, inner in value.items()}
    if isinstance(value, str) and value and Path(value).is_relative_to(before):
        return str(now / Path(value).relative_to(before))
    return value

"""A callback that holds one rank at a moment of the training until the fault has been delivered."""

import collections
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
from typing_extensions import override

# counted from 0: a checkpoint of the epoch before is there, and an epoch is left to train
EPOCH = 1
HELD_S = 600.0  # whoever delivers the fault may have died


class Moment(L.Callback):
    """Rank `rank` waits at the moment `at`.

    It writes the file "reached" into `folder`, and waits for the file "delivered".

    Moments of the second epoch: "step", after its second step; "validation", after its first batch;
    "checkpoint", while its file is open and has no content yet, where rank 0 is held whatever
    `rank` says, for it alone writes. "test" is after the first batch of the test. Every rank leaves
    its process id in the file "pid-RANK".
    """

    def __init__(self, *, at: str, rank: int, folder: str) -> None:
        self._at = at
        self._rank = 0 if at == "checkpoint" else rank
        self._folder = Path(folder)

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        (self._folder / f"pid-{trainer.global_rank}").write_text(str(os.getpid()))

    @override
    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if trainer.current_epoch == EPOCH and batch_idx == 1:
            self._hold(trainer, "step")

    @override
    def on_validation_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.current_epoch == EPOCH:  # at its first batch: a moment is reached once
            self._hold(trainer, "validation")

    @override
    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if trainer.current_epoch == EPOCH and self._at == "checkpoint":
            checkpoint["moment"] = _Hold(lambda: self._hold(trainer, "checkpoint"))

    @override
    def on_test_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        self._hold(trainer, "test")

    def _hold(self, trainer: L.Trainer, moment: str) -> None:
        reached = self._folder / "reached"
        if moment != self._at or trainer.global_rank != self._rank or reached.exists():
            return
        reached.touch()
        deadline = time.monotonic() + HELD_S
        while not (self._folder / "delivered").exists() and time.monotonic() < deadline:
            time.sleep(0.01)


class _Hold:
    """Waits when it is pickled, and loads as an empty mapping.

    `torch.save` pickles once the file is open.
    """

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait

    def __reduce__(self) -> tuple[Any, ...]:
        self._wait()
        return collections.OrderedDict, ()

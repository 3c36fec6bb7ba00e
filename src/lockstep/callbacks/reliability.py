"""Collect the predictions of a test or a validation, calibrated if its checkpoint is."""

from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from lockstep.models import calibration
from lockstep.models.classifier import Checkpoint, Classifier
from lockstep.models.predictions import Findings, FindingsCollector


class Reliability(Callback):
    """Stores the `findings` of each test, and of each validation outside a training.

    If `is_applied`, a checkpoint that is loaded for them also restores the calibration of the
    module. A resumed training drops the calibration, because its weights change.
    """

    def __init__(self, *, is_applied: bool) -> None:
        self._is_applied = is_applied
        self._collector: FindingsCollector | None = None
        self.findings: Findings | None = None

    @override
    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint
    ) -> None:
        if self._is_applied and trainer.state.fn != TrainerFn.FITTING:
            assert isinstance(pl_module, Classifier)
            calibration.restore(pl_module, checkpoint)

    @override
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Classifier)
        if trainer.state.fn != TrainerFn.FITTING and calibration.has_probabilities(pl_module.task):
            classes = pl_module.image_format.class_names
            self._collector = FindingsCollector(pl_module.task, pl_module.calibration, len(classes))

    on_test_epoch_start = on_validation_epoch_start

    @override
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._collector is not None and outputs is not None:
            self._collector.update(outputs, batch.targets, batch.indices)

    on_test_batch_end = on_validation_batch_end

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        collector, self._collector = self._collector, None
        self.findings = None if collector is None else collector.findings()

    on_test_epoch_end = on_validation_epoch_end


def callback_of(trainer: Trainer) -> Reliability | None:
    """Return the callback of a trainer, or None for a trainer of a custom module."""
    callbacks: Any = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    return next((callback for callback in callbacks if isinstance(callback, Reliability)), None)

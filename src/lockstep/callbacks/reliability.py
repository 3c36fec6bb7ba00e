"""Predictions of a test or a validation, calibrated if its checkpoint is."""

from typing import Any

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from lockstep.models import calibration
from lockstep.models.classifier import Classifier
from lockstep.models.outcomes import Findings, Outcomes


class Collector(L.Callback):
    """Collects the predictions of classes or labels in validations and tests while it has `outcomes`."""

    def __init__(self) -> None:
        self.outcomes: Outcomes | None = None

    def start(self, pl_module: L.LightningModule) -> None:
        if isinstance(pl_module, Classifier) and calibration.has_probabilities(pl_module.task):
            classes = pl_module.image_format.class_names
            self.outcomes = Outcomes(pl_module.task, pl_module.calibration, len(classes))

    def end(self) -> Findings | None:
        """Return what was collected since the start. Every rank must call it."""
        outcomes, self.outcomes = self.outcomes, None
        return None if outcomes is None else outcomes.findings()

    @override
    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self.outcomes is not None and outputs is not None:
            self.outcomes.update(outputs, batch.targets, batch.indices)

    on_test_batch_end = on_validation_batch_end


class Reliability(Collector):
    """Gives the module the calibration of a checkpoint that is loaded for a test or a validation, and keeps `findings`.

    A training that resumes from it goes on without: its weights change.
    """

    def __init__(self, here: Any) -> None:
        """Take the session, as all callbacks that come first."""
        super().__init__()
        self._is_applied = here.config.calibrate
        self.entry: dict[str, Any] = {"note": "not in the checkpoint" if self._is_applied else "calibrate=false"}
        self.findings: Findings | None = None
        self.results: dict[str, Any] = {}  # for summary.json

    @override
    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._is_applied and trainer.state.fn != TrainerFn.FITTING and isinstance(pl_module, Classifier):
            calibration.restore(pl_module, checkpoint)
            self.entry = checkpoint.get("calibration", self.entry)

    @override
    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            self.start(pl_module)

    on_test_epoch_start = on_validation_epoch_start

    @override
    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            self.findings = self.end()

    on_test_epoch_end = on_validation_epoch_end

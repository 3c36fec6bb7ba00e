"""Calibrated predictions in the tests and validations of Lightning's Trainer that are no part of a training."""

from typing import Any

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from lockstep.models import calibration
from lockstep.models.classifier import Classifier


class Reliability(L.Callback):
    """Gives the module the calibration of a checkpoint that is loaded for a test or a validation.

    A training that resumes from it goes on without: its weights change.
    """

    def __init__(self, here: Any) -> None:
        """Take the session, as all callbacks that come first."""

    @override
    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn != TrainerFn.FITTING and isinstance(pl_module, Classifier):
            calibration.restore(pl_module, checkpoint)

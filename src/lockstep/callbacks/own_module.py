"""A LightningModule of the user's own in the place of Lockstep's: what the rest asks of either of them."""

from collections.abc import Sequence
from typing import Any

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torchmetrics import Metric
from typing_extensions import override

from lockstep.distributed.collectives import gather_objects
from lockstep.distributed.rng import ExactDropout
from lockstep.models.classifier import Classifier
from lockstep.tasks import reduction
from lockstep.tasks.scores import MetricError


def metrics_of(trainer: L.Trainer, module: L.LightningModule) -> dict[str, float]:
    """The newest global value of all that is measured, by name."""
    if isinstance(module, Classifier):
        return module.metrics
    companions = [callback for callback in trainer.callbacks if isinstance(callback, Companion)]  # pyright: ignore[reportAttributeAccessIssue]
    return companions[0].metrics


def micro_batches(module: L.LightningModule) -> int:
    """How many micro-batches an optimizer step has; a module of the user's own is not asked to accumulate."""
    return module.accumulate_grad_batches if isinstance(module, Classifier) else 1


def steps_done(trainer: L.Trainer, module: L.LightningModule) -> int:
    """Steps of the training so far: a batch is one, however many optimizers a module of the user's own has."""
    return trainer.global_step if isinstance(module, Classifier) else trainer.fit_loop.total_batch_idx + 1


class Companion(L.Callback):
    """Does for a module of the user's own what Lockstep's does by itself.

    Its dropouts learn which samples are theirs, and `metrics` has what it logged when all ranks were at the same place.
    `watched` are the settings that name a metric, with the name: callbacks decide by it, so it must have the same value
    on all ranks. First of all callbacks.
    """

    def __init__(self, name: str, dropouts: Sequence[ExactDropout], watched: dict[str, str]) -> None:
        self._name = name
        self._dropouts = dropouts
        self._watched = watched
        self._validated = -1  # the epoch of the newest validation
        self.metrics: dict[str, float] = {}

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Have the metrics of the module, which the device has now, add up in float64."""
        for part in pl_module.modules():
            if isinstance(part, Metric):
                reduction.keep_wide(part)

    on_validation_start = on_train_start
    on_test_start = on_train_start

    @override
    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        for dropout in self._dropouts:
            dropout.shard = batch.shard

    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take what was validated. Raises MetricError where a callback could not decide by it, or not on all ranks."""
        self._validated = trainer.current_epoch
        self._take(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self._refuse_unfit([key for key, name in self._watched.items() if name.startswith("val/")])

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take what was measured of the epoch; what an earlier one validated is not of this one. Raises MetricError."""
        self._take(trainer)
        if self._validated != trainer.current_epoch:
            self.metrics = {name: value for name, value in self.metrics.items() if not name.startswith("val/")}
        has_validation = is_overridden("validation_step", pl_module)
        self._refuse_unfit([key for key, name in self._watched.items() if not (has_validation and name[:4] == "val/")])

    @override
    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._take(trainer)

    def _take(self, trainer: L.Trainer) -> None:
        logged = {name: value for name, value in trainer.callback_metrics.items() if not name.endswith("_step")}
        self.metrics.update({name: float(value) for name, value in logged.items()})

    def _refuse_unfit(self, keys: Sequence[str]) -> None:
        everywhere = gather_objects(self.metrics)
        for key in keys:
            name = self._watched[key]
            values = {metrics.get(name) for metrics in everywhere}
            if None in values:
                logs = ", ".join(self.metrics) or "nothing"
                raise MetricError(f"{key}={name} is not logged by {self._name}, which logs {logs}: choose from these")
            if len(values) > 1 and not all(value != value for value in values):
                hint = "log a metric of torchmetrics, or what lockstep.sum_over_global gives"
                raise MetricError(f"{key}={name}: {self._name} logs another value on each worker: {hint}")

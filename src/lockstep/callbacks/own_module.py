"""Facts that other parts need from Lockstep's module or from a custom LightningModule."""

from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from typing_extensions import override

from lockstep.distributed.collectives import gather_objects
from lockstep.distributed.rng import ExactDropout
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.models.weights_hash import weights_hash
from lockstep.tasks.scores import MetricError


def metrics_of(trainer: L.Trainer, module: L.LightningModule) -> dict[str, float]:
    """Return the newest global value of every metric, by name."""
    if isinstance(module, Classifier):
        return module.metrics
    companions = [callback for callback in trainer.callbacks if isinstance(callback, Companion)]  # pyright: ignore[reportAttributeAccessIssue]
    return companions[0].metrics


def micro_batches(module: L.LightningModule) -> int:
    """Return the number of micro-batches of an optimizer step; a custom module has one."""
    return module.accumulate_grad_batches if isinstance(module, Classifier) else 1


def steps_done(trainer: L.Trainer, module: L.LightningModule) -> int:
    """Return the number of steps so far; each batch is one, for any number of optimizers of a custom module."""
    return trainer.global_step if isinstance(module, Classifier) else trainer.fit_loop.total_batch_idx + 1


def skipped_steps(module: L.LightningModule) -> dict[str, int]:
    """Return the number of steps so far that updated nothing, as `skipped_steps`; nothing unless in float16."""
    scale = module.loss_scale if isinstance(module, Classifier) else None
    return {} if scale is None else {"skipped_steps": scale.num_skipped}


def hash_of(module: L.LightningModule) -> str:
    """Return the hash of the weights of the network, or of a whole custom module."""
    return weights_hash((module.net if isinstance(module, Classifier) else module).state_dict())


class Companion(L.Callback):
    """Passes shards to the dropouts of a custom module, collects the metrics that it logs, and saves its image format.

    `watched` maps settings to the metrics they name: callbacks decide by them, so their values must be the same on all
    ranks. Must be the first callback.
    """

    def __init__(
        self, name: str, images: ImageFormat, dropouts: Sequence[ExactDropout], watched: dict[str, str]
    ) -> None:
        self._name = name
        self._images = images
        self._dropouts = dropouts
        self._watched = watched
        self._validated = -1  # epoch of the last validation
        self.metrics: dict[str, float] = {}

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Make metrics of single values, such as MeanMetric, take float64: moving them has reset that."""
        from torchmetrics.aggregation import BaseAggregator  # costs a dozen modules that other trainings do not need

        for part in pl_module.modules():
            if isinstance(part, BaseAggregator):
                part.set_dtype(torch.float64)

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
        """Collect the validation. Raises MetricError if a watched metric is missing or differs between ranks."""
        self._validated = trainer.current_epoch
        self._collect(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self._refuse_unfit([key for key, name in self._watched.items() if name.startswith("val/")])

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Collect the metrics of the epoch, and drop the validation of an earlier one. Raises MetricError."""
        self._collect(trainer)
        if self._validated != trainer.current_epoch:
            self.metrics = {name: value for name, value in self.metrics.items() if not name.startswith("val/")}
        has_validation = is_overridden("validation_step", pl_module)
        self._refuse_unfit([key for key, name in self._watched.items() if not (has_validation and name[:4] == "val/")])

    @override
    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._collect(trainer)

    @override
    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["image_format"] = self._images._asdict()

    def _collect(self, trainer: L.Trainer) -> None:
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
                hint = "log a metric of torchmetrics, or the result of lockstep.sum_over_global"
                raise MetricError(f"{key}={name}: {self._name} logs different values on the workers: {hint}")

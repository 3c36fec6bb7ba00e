"""A custom LightningModule, built from the configuration, with its companion callback."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torchmetrics.metric import Metric
from typing_extensions import override

from lockstep.assembly.session import Session
from lockstep.config import build
from lockstep.config.checks import signatures
from lockstep.distributed.batch_norm import refuse_inexact_norms
from lockstep.distributed.collectives import gather_objects
from lockstep.distributed.rng import ExactDropout, replace_dropout, seed_of
from lockstep.models.classifier import Checkpoint, ImageFormat
from lockstep.models.counts import Metrics
from lockstep.system.output import print_error
from lockstep.tasks.scores import MetricError, prepare_to_log

LOG_HINT = "log a metric of torchmetrics, or the result of lockstep.sum_over_global"


def build_module(
    session: Session, images: ImageFormat, total_steps: int
) -> tuple[LightningModule, "Companion"]:
    """Build the custom LightningModule and its companion. Every rank must call it.

    The module receives those standard arguments that it accepts. Raises ConfigError if it cannot be
    built, or if its norms or random draws cannot be exact.
    """
    config = session.config
    shape, num_classes = images.image_shape, len(images.class_names)
    torch.manual_seed(seed_of(config.seed, "weights"))
    standard_arguments: dict[str, Callable[[], Any]] = {
        "net": lambda: build.build(config.model, in_channels=shape[0], num_classes=num_classes),
        "optimizer": lambda: build.build(config.optimizer),
        "image_shape": lambda: shape,
        "num_classes": lambda: num_classes,
        "total_steps": lambda: total_steps,
    }
    names = signatures.parameter_names(config.module.target)
    with build.section_errors(config, "module"):
        arguments = {name: make() for name, make in standard_arguments.items() if name in names}
        module = build.build(config.module, **arguments)
        if not isinstance(module, LightningModule):
            raise TypeError("it is not a LightningModule of lightning")
        refuse_inexact_norms(module)
        dropouts = replace_dropout(module, config.seed)
        for path, submodule in module.named_modules():
            if isinstance(submodule, Metric):
                prepare_to_log(f"module.{path}", submodule)
    monitors = {
        f"callbacks.{name}.monitor": str(section.arguments()["monitor"])
        for name, section in config.callbacks.items()
        if section is not None and section.arguments().get("monitor") is not None
    }
    module = module.double() if session.precision == "float64" else module
    return module, Companion(f"module._target_={config.module.target}", images, dropouts, monitors)


class Companion(Callback):
    """Passes shards to the dropouts of a custom module, and collects its logged metrics.

    It also saves the image format. `monitors` maps settings to the metrics they name. Callbacks
    decide by these metrics, so values that differ between ranks are refused. Other metrics that
    differ are reported once. It must be the first callback.
    """

    def __init__(
        self,
        module_name: str,
        images: ImageFormat,
        dropouts: Sequence[ExactDropout],
        monitors: dict[str, str],
    ) -> None:
        self._name = module_name
        self._images = images
        self._dropouts = dropouts
        self._watched = monitors
        self._reported: set[str] = set()  # metrics that differ between ranks
        self._validated = -1  # epoch of the last validation
        self.metrics: Metrics = {}

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set metrics of single values, such as MeanMetric, to float64.

        Moving a metric to a device has reset its dtype.
        """
        # This imports a dozen modules that other trainings do not need.
        from torchmetrics.aggregation import BaseAggregator

        for submodule in pl_module.modules():
            if isinstance(submodule, BaseAggregator):
                submodule.set_dtype(torch.float64)

    on_validation_start = on_train_start
    on_test_start = on_train_start

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        for dropout in self._dropouts:
            dropout.shard = batch.shard

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Collect the metrics of the validation.

        Raises MetricError if a watched metric is missing or differs between ranks.
        """
        self._validated = trainer.current_epoch
        self._collect(trainer)
        keys = [key for key, name in self._watched.items() if name.startswith("val/")]
        is_fitting = trainer.state.fn == TrainerFn.FITTING
        self._compare_ranks(trainer, keys if is_fitting else [])

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Collect the metrics of the epoch, and drop those of an earlier validation.

        Raises MetricError if a watched metric is missing or differs between ranks.
        """
        self._collect(trainer)
        if self._validated != trainer.current_epoch:
            for name in [name for name in self.metrics if name.startswith("val/")]:
                del self.metrics[name]
        keys = [*self._watched]
        if is_overridden("validation_step", pl_module):
            keys = [key for key in keys if not self._watched[key].startswith("val/")]
        self._compare_ranks(trainer, keys)

    @override
    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._collect(trainer)
        self._compare_ranks(trainer, [])

    @override
    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint
    ) -> None:
        checkpoint["image_format"] = self._images._asdict()

    def _collect(self, trainer: Trainer) -> None:
        for name, value in trainer.callback_metrics.items():
            if not name.endswith("_step"):
                self.metrics[name] = float(value)

    def _compare_ranks(self, trainer: Trainer, keys: Sequence[str]) -> None:
        """Raise MetricError if a metric that one of the settings `keys` names is unfit.

        Report other metrics that differ between ranks. Every rank must call it.
        """
        everywhere = gather_objects(self.metrics)
        for key in keys:
            metric_name = self._watched[key]
            if not all(metric_name in metrics for metrics in everywhere):
                logs = ", ".join(self.metrics) or "nothing"
                raise MetricError(
                    f"{key}={metric_name} is not logged by {self._name}, which logs {logs}: "
                    "choose from these"
                )
            if _differs(metric_name, everywhere):
                raise MetricError(
                    f"{key}={metric_name}: {self._name} logs different values on the workers: "
                    f"{LOG_HINT}"
                )
        names = dict.fromkeys(name for metrics in everywhere for name in metrics)
        differing = [
            name for name in names if name not in self._reported and _differs(name, everywhere)
        ]
        self._reported.update(differing)
        if differing and trainer.is_global_zero:
            listed = "; ".join(f"{name} ({_values_text(name, everywhere)})" for name in differing)
            print_error(
                f"{self._name} logs different values on the workers, and those of rank 0 are "
                f"recorded: {listed}: {LOG_HINT}."
            )


def _differs(name: str, everywhere: Sequence[Metrics]) -> bool:
    """Return whether a metric differs between ranks. A metric that only some log differs."""
    values = {metrics.get(name) for metrics in everywhere}
    return len(values) > 1 and not all(value != value for value in values)


def _values_text(name: str, everywhere: Sequence[Metrics]) -> str:
    """Return the values of a metric on all ranks as text."""
    values = (metrics.get(name) for metrics in everywhere)
    return ", ".join("nothing" if value is None else f"{value:.6g}" for value in values)

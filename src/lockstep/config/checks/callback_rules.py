"""Rules for the callbacks of a configuration, most of which are Lightning's."""

from lockstep.config.checks import metric_names
from lockstep.config.errors import Error, Errors
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import Open

# These callbacks of Lightning need its automatic optimization, another loop or a single worker.
# Each has a replacement.
_FREEZING = "freeze by parameters.NAME.frozen_epochs"
_PROGRESS = "remove it, Lockstep shows the progress"
INSTEAD = {
    "BackboneFinetuning": _FREEZING,
    "BaseFinetuning": _FREEZING,
    "BasePredictionWriter": "use lockstep predict",
    "BatchSizeFinder": "set global_batch_size",
    "GradientAccumulationScheduler": "set trainer.accumulate_grad_batches",
    "LearningRateFinder": "compare values of optimizer.lr in a sweep, -m optimizer.lr=0.01,0.1",
    "ModelPruning": "prune the network of a finished run",
    "ProgressBar": _PROGRESS,
    "RichProgressBar": _PROGRESS,
    "SpikeDetection": "remove it, a loss that is not finite ends the run",
    "StochasticWeightAveraging": "use callbacks=ema",
    "TQDMProgressBar": _PROGRESS,
}
# These callbacks have a state. Lightning distinguishes two of them only by the settings in
# `STATE_KEYS`, which has its defaults.
STATEFUL = (
    "AveragedWeights",
    "EMAWeightAveraging",
    "EarlyStopping",
    "ModelCheckpoint",
    "Timer",
    "WeightAveraging",
)
STATE_KEYS = {"monitor": None, "mode": "min", "every_n_train_steps": None, "every_n_epochs": 1}


def errors(config: Config) -> Errors:
    """Yield the errors of callbacks, and of the metrics that they monitor."""
    states: dict[tuple[str, ...], str] = {}
    for name, callback in config.callbacks.items():
        if callback is None:
            continue
        key = f"callbacks.{name}"
        arguments = callback.arguments()
        kind = callback.target.rpartition(".")[2]
        if callback.target.startswith("lightning.") and kind in INSTEAD:
            yield unfit_callback(key, callback.target, kind)
            continue
        if kind in STATEFUL:
            state = (
                kind,
                *(
                    str(arguments.get(argument, default))
                    for argument, default in STATE_KEYS.items()
                ),
            )
            if (first_key := states.setdefault(state, key)) != key:
                yield Error(
                    "conflict",
                    key,
                    f"is a second {kind} that Lightning cannot distinguish from {first_key}",
                    f"change {first_key} instead",
                )
                continue
        yield from _monitor_rules(config, key, callback)
        if kind in ("DeviceStatsMonitor", "LearningRateMonitor") and not any(
            config.logger.values()
        ):
            yield Error(
                "conflict", key, "needs a logger", f"set {key}=null, or choose logger=tensorboard"
            )
        if arguments.get("train_time_interval") is not None:
            # Lightning 2.6 skips this setting in manual optimization, which Lockstep uses.
            yield Error(
                "unsupported",
                f"{key}.train_time_interval",
                "has no effect",
                f"use {key}.every_n_train_steps",
            )


def _monitor_rules(config: Config, key: str, callback: Open) -> Errors:
    monitor, mode = (callback.arguments().get(name) for name in ("monitor", "mode"))
    metrics, trainer = metric_names.names(config), config.trainer
    # A custom task, module or callback may log metrics that are not known in advance.
    may_log = any(
        section is not None and not section.target.startswith(("lockstep.", "lightning."))
        for section in (config.task, config.module, *config.callbacks.values())
    )
    if monitor is not None and monitor not in metrics and not may_log:
        yield Error(
            "unknown",
            f"{key}.monitor={monitor}",
            "is not measured",
            f"choose from {', '.join(metrics)}",
        )
        return
    direction = metric_names.direction(monitor, metric_names.targets(config))
    if mode == metric_names.AUTO and direction is None:
        yield Error(
            "missing",
            f"{key}.mode=auto",
            f": the direction of {monitor} is not known",
            f"set {key}.mode=min or max",
        )
    elif direction and mode not in (None, direction):
        yield Error(
            "conflict",
            f"{key}.mode={mode}",
            f"selects the worst {monitor} as the best",
            f"set {key}.mode={direction}",
        )
    every_n_epochs, epochs = trainer.check_val_every_n_epoch, trainer.max_epochs
    if str(monitor).startswith("val/") and every_n_epochs > epochs:
        yield Error(
            "range",
            f"trainer.check_val_every_n_epoch={every_n_epochs}",
            f"is above trainer.max_epochs={epochs}, so that {key} never gets {monitor}",
            "lower it",
        )


def unfit_callback(key: str, target: str, kind: str) -> Error:
    """Describe a callback that Lockstep does not support; `kind` is its key in `INSTEAD`."""
    return Error(
        "unsupported",
        f"{key}._target_={target}",
        f": {kind} does not work in Lockstep's training",
        INSTEAD[kind],
    )

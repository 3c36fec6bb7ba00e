"""What several keys must be together. A new rule is added to `conflicts`.

Rules about the number of workers are in workers.py, those of a cluster in slurm_rules.py.
"""

import shlex
from collections.abc import Iterator, Sequence

from lockstep.config import measured, signatures, slurm_rules
from lockstep.config.errors import shown
from lockstep.config.schema import BenchmarkConfig, Config
from lockstep.config.target_sections import is_ours
from lockstep.config.workers import resolve_workers
from lockstep.data.transfer import remote
from lockstep.system.trees import at

# Lightning's callbacks that need its automatic optimization, another loop or a single worker, and what to use instead
_FREEZING = "freeze by parameters.NAME.frozen_epochs"
_PROGRESS = "leave it out, Lockstep shows the progress"
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
    "SpikeDetection": "leave it out, a loss that is not finite ends the run",
    "StochasticWeightAveraging": "use callbacks=ema",
    "TQDMProgressBar": _PROGRESS,
}
# those that save a state, and what Lightning tells two of one kind apart by, with its defaults
STATEFUL = ("AveragedWeights", "EMAWeightAveraging", "EarlyStopping", "ModelCheckpoint", "Timer", "WeightAveraging")
TOLD_APART_BY = {"monitor": None, "mode": "min", "every_n_train_steps": None, "every_n_epochs": 1}

SUMMARY_NUMBERS = ("training_s", "epoch_s_median", "images_per_s", "parameters", "epochs", "steps")


def conflicts(config: Config, *, is_whole: bool) -> list[str]:
    """Errors of settings that are right each by itself. Rules that need a faulty key are left out."""
    errors: list[str] = []
    rules = (
        _batch_rules,
        _module_rules,
        _task_rules,
        _package_rules,
        _data_rules,
        _file_rules,
        _optimizer_rules,
        _callback_rules,
        _notify_rules,
        _search_rules,
    )
    for rule in (*rules, _benchmark_rules, _worker_rules, *slurm_rules.RULES):
        try:
            errors += rule(config)
        except AttributeError:
            if is_whole:
                raise
    return errors


def _benchmark_rules(config: Config) -> Iterator[str]:
    if isinstance(config, BenchmarkConfig) and config.init_from is not None:  # also where an experiment says it
        yield f"init_from={config.init_from}: a benchmark starts anew: leave it out"
    if isinstance(config, BenchmarkConfig) and "val/accuracy" not in measured.names(config):
        yield "lockstep benchmark compares environments by val/accuracy, which task.metrics does not measure: add it"


def _worker_rules(config: Config) -> Sequence[str]:
    return resolve_workers(config).errors


def _batch_rules(config: Config) -> Iterator[str]:
    if config.global_batch_size % config.trainer.accumulate_grad_batches:
        yield (
            f"trainer.accumulate_grad_batches={config.trainer.accumulate_grad_batches} does not divide "
            f"global_batch_size={config.global_batch_size}: a global batch is cut into that many equal micro-batches"
        )


def _module_rules(config: Config) -> Iterator[str]:
    if not config.has_own_module:
        return
    trainer, module = config.trainer, f"module._target_={config.module.target}"
    settings = (
        ("compile", config.compile, False, "call torch.compile in it"),
        ("flip_test", config.flip_test, False, "average in its test_step"),
        ("init_from", config.init_from, None, "load the weights in it"),
        ("parameters", config.parameters or None, None, "make the groups in its configure_optimizers"),
        ("trainer.accumulate_grad_batches", trainer.accumulate_grad_batches, 1, "accumulate in its training_step"),
        ("trainer.gradient_clip_norm", trainer.gradient_clip_norm, None, "clip in its configure_gradient_clipping"),
        ("trainer.memory_format", trainer.memory_format, "auto", "choose the format in it"),
    )
    for key, value, plain, hint in settings:
        if value != plain:
            error = f"{key}={shown(value)} is of Lockstep's own module, and {module} takes its place"
            yield f"{error}: leave it out, or {hint}"
    if isinstance(config, BenchmarkConfig):
        yield f"lockstep benchmark measures Lockstep's own module: leave out {module}"


def _task_rules(config: Config) -> Iterator[str]:
    task, arguments = config.task, config.task.arguments()
    is_classification, weights = task.target == "lockstep.tasks.Classification", arguments.get("class_weights")
    if is_classification and (loss := at(arguments, ["loss", "_target_"])) is not None:
        for key, plain in (("label_smoothing", 0), ("class_weights", None)):
            if (value := arguments.get(key, plain)) != plain:
                yield (
                    f"task.{key}={shown(value)} is of cross-entropy, and task.loss={loss} takes its place: "
                    f"set task.{key}={shown(plain)}"
                )
    if is_classification and isinstance(weights, list) and not any(weights):
        yield f"task.class_weights={shown(weights)} counts no sample: give a class more than 0"
    if config.flip_test and task.target.endswith(".Regression"):
        yield "flip_test=true averages what an image and its mirror image are, and a number may turn: leave it out"
    taken = [name for name in task.metrics if name in ("loss", "count") or "/" in name]
    yield from (f"task.metrics.{name} cannot have this name: loss is always measured, choose another" for name in taken)


def _package_rules(config: Config) -> Iterator[str]:
    if config.model.target == "lockstep.models.timm" and not signatures.is_there("timm"):
        yield f"model._target_={config.model.target} {_missing('timm')}"
    for name, logger in config.logger.items():
        is_wandb = logger is not None and logger.target.endswith((".ResumableWandbLogger", ".WandbLogger"))
        if is_wandb and not signatures.is_there("wandb"):
            yield f"logger.{name} {_missing('wandb')}"


def _missing(package: str) -> str:
    return f"needs the package {package}, which is not here: install it by: pip install 'lockstep[{package}]'"


def _data_rules(config: Config) -> Iterator[str]:
    arguments = config.data.arguments()
    val, test, mean, std = (arguments.get(name) for name in ("val_fraction", "test_fraction", "mean", "std"))
    if isinstance(val, float) and isinstance(test, float) and val + test >= 1:
        yield f"data.val_fraction={val} and data.test_fraction={test} leave nothing to train on: use smaller ones"
    if config.data.target == "lockstep.data.dataset" and (mean is None) != (std is None):
        yield f"data.mean={shown(mean)} and data.std={shown(std)}: give both, or neither to have them measured"


def _file_rules(config: Config) -> Iterator[str]:
    data = config.data
    if data.root is None:
        for key, value in (("copy_to", data.copy_to), ("copy_remove", data.copy_remove)):
            if value:
                yield f"data.{key}={shown(value)} is for a copy of data.root, which is not set: leave it out"
        return
    is_url = remote.is_url(data.root)
    if is_url and is_ours(data.target):
        yield from remote.errors(data.root)
        if data.copy_to is None and data.arguments().get("cache") is None:
            yield f"data.root={data.root} is a URL: say where its files are kept, data.copy_to=data/cache"
    if data.copy_remove and data.copy_to is None and not is_url:
        yield "data.copy_remove=true removes the copy of this run, and there is none: set data.copy_to, or leave it out"


def _optimizer_rules(config: Config) -> Iterator[str]:
    if config.scale_with_workers and config.optimizer.lr is None:
        yield "scale_with_workers=true multiplies optimizer.lr, but it has no value: add +optimizer.lr=..."


def _callback_rules(config: Config) -> Iterator[str]:
    has_logger = any(logger is not None for logger in config.logger.values())
    states: dict[tuple[str, ...], str] = {}
    for name, callback in config.callbacks.items():
        if callback is None:
            continue
        key, arguments, kind = f"callbacks.{name}", callback.arguments(), callback.target.rpartition(".")[2]
        if callback.target.startswith("lightning.") and kind in INSTEAD:
            yield unfit_callback(key, callback.target, kind)
            continue
        if kind in STATEFUL:
            state = (kind, *(str(arguments.get(name, default)) for name, default in TOLD_APART_BY.items()))
            if (other := states.setdefault(state, key)) != key:
                yield f"{key} is a second {kind} that Lightning cannot tell from {other}: change {other} instead"
                continue
        monitor = arguments.get("monitor")
        known = measured.names(config)
        if monitor is not None and monitor not in known and not _may_log(config):
            yield f"{key}.monitor={monitor} is never measured: choose from {', '.join(known)}"
            continue
        better = measured.direction(monitor, measured.targets(config))
        if arguments.get("mode") == measured.AUTO and better is None:
            yield f"{key}.mode=auto: nobody says whether more of {monitor} is better: set {key}.mode=min or max"
        elif better and arguments.get("mode", better) != better:
            yield f"{key}.mode={arguments['mode']} takes the worst {monitor} for the best: set {key}.mode={better}"
        if str(monitor).startswith("val/") and config.trainer.check_val_every_n_epoch > config.trainer.max_epochs:
            yield (
                f"trainer.check_val_every_n_epoch={config.trainer.check_val_every_n_epoch} is above "
                f"trainer.max_epochs={config.trainer.max_epochs}: {key} needs {monitor}, which is never measured then"
            )
        if kind in ("DeviceStatsMonitor", "LearningRateMonitor") and not has_logger:
            yield f"{key} needs a logger, and there is none: set {key}=null, or choose logger=tensorboard"
        if kind == "DeviceStatsMonitor" and not signatures.is_there("psutil"):
            cpu_stats = arguments.get("cpu_stats")
            if cpu_stats or (cpu_stats is None and not resolve_workers(config).gpus):
                yield f"{key} needs the package psutil, which is not here: install it by: pip install psutil"
        if arguments.get("train_time_interval") is not None:
            # Lightning 2.6 passes over it in manual optimization, which the step here is
            yield f"{key}.train_time_interval is not looked at: use {key}.every_n_train_steps"


def unfit_callback(key: str, target: str, kind: str) -> str:
    """The error of a callback that is a `kind` of `INSTEAD`."""
    return f"{key}._target_={target}: {kind} does not work in Lockstep's training: {INSTEAD[kind]}"


def _may_log(config: Config) -> bool:
    """Whether something of the user's own may measure what nobody else knows of."""
    own = [section.target for section in config.callbacks.values() if section is not None]
    targets = (config.task.target, config.module.target, *own)
    return any(not target.startswith(("lockstep.", "lightning.")) for target in targets)


def _notify_rules(config: Config) -> Iterator[str]:
    command = config.notify.command
    if command is None:
        return
    try:
        shlex.split(command)
    except ValueError as error:
        yield f"notify.command is no command line: {error}, close the quotes"


def _search_rules(config: Config) -> Iterator[str]:
    search = config.search
    if search is None or search.objectives is None:
        return
    known = (*measured.names(config), *SUMMARY_NUMBERS)
    names = () if _may_log(config) else search.objectives
    if not search.objectives:
        yield "search.objectives={} optimizes nothing: name one, or use null for what best.ckpt has"
    for name in names:
        if name not in known:
            yield f"search.objectives has {name}, which is never measured: choose from {', '.join(known)}"
    if len(search.objectives) > 1 and search.pruner is not None:
        yield "search.pruner compares by one objective, and search.objectives has several: use search.pruner=null"

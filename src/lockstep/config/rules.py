"""Rules between keys. A new rule is added to `_rules`.

Those about the number of workers are in workers.py, of callbacks in callback_rules.py, of a cluster in slurm_rules.py.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator

from lockstep.config import callback_rules, features, measured, signatures, slurm_rules
from lockstep.config.errors import shown
from lockstep.config.schema import BenchmarkConfig, Config
from lockstep.config.workers import resolve_workers
from lockstep.system.trees import at


def conflicts(config: Config) -> list[str]:
    """Return the errors between keys, each of which is valid."""
    rules: tuple[Callable[[Config], Iterable[str]], ...] = (
        _module_rules, _task_rules, _data_rules, _augment_rules, _package_rules, _batch_rules,
        _optimizer_rules, callback_rules.errors, _notify_rules, _benchmark_rules,
        slurm_rules.errors, *features.used("rules", config),
    )  # fmt: skip
    # each environment of a benchmark has its own workers, and its job its own request
    workers = () if isinstance(config, BenchmarkConfig) else resolve_workers(config).errors
    return [*(error for rule in rules for error in rule(config)), *workers]


def _batch_rules(config: Config) -> Iterator[str]:
    parts, size = config.trainer.accumulate_grad_batches, config.global_batch_size
    if size % parts:
        yield (
            f"trainer.accumulate_grad_batches={parts} does not divide global_batch_size={size}: "
            "a global batch is cut into that many equal micro-batches"
        )


def _optimizer_rules(config: Config) -> Iterator[str]:
    if config.scale_with_workers and config.optimizer.lr is None:
        yield "scale_with_workers=true multiplies optimizer.lr, but it has no value: add +optimizer.lr=..."


def _benchmark_rules(config: Config) -> Iterator[str]:
    if not isinstance(config, BenchmarkConfig):
        return
    if config.trainer.num_nodes > 1 and config.cluster.name != "slurm":
        setting = f"trainer.num_nodes={config.trainer.num_nodes} is for the job of a benchmark"
        yield f"{setting}: add cluster=slurm; an allocation is used whole without it"
    if config.init_from is not None:
        yield f"init_from={config.init_from}: a benchmark starts new runs: remove it"
    if config.has_own_module:
        yield f"lockstep benchmark measures Lockstep's own module: remove module._target_={config.module.target}"
    elif "val/accuracy" not in measured.names(config):
        yield "lockstep benchmark compares environments by val/accuracy, which task.metrics does not measure: add it"


def _module_rules(config: Config) -> Iterator[str]:
    if not config.has_own_module:
        return
    trainer = config.trainer
    settings = (
        ("compile", config.compile, False, "call torch.compile in it"),
        ("flip_test", config.flip_test, False, "average in its test_step"),
        ("parameters", config.parameters or None, None, "make the groups in its configure_optimizers"),
        ("trainer.accumulate_grad_batches", trainer.accumulate_grad_batches, 1, "accumulate in its training_step"),
        ("trainer.gradient_clip_norm", trainer.gradient_clip_norm, None, "clip in its configure_gradient_clipping"),
        ("trainer.loads", "auto" if trainer.loads == "auto" else None, None, "give numbers"),
        ("trainer.memory_format", trainer.memory_format, "auto", "choose the format in it"),
        ("trainer.graph", True if trainer.graph is True else None, None, "capture graphs in it"),
        # Lightning changes the scale between the steps of two optimizers, and lets fused SGD begin with a skipped step
        ("trainer.precision", "float16" if trainer.precision == "float16" else None, None, "use bfloat16 or float32"),
    )
    for key, value, default, hint in settings:
        if value != default:
            error = f"{key}={shown(value)} is of Lockstep's own module, which module._target_={config.module.target}"
            yield f"{error} replaces: remove it, or {hint}"


def _task_rules(config: Config) -> Iterator[str]:
    task, arguments = config.task, config.task.arguments()
    if task.target == "lockstep.tasks.Classification":
        weights, loss = arguments.get("class_weights"), at(arguments, ["loss", "_target_"])
        for key, default in (("label_smoothing", 0), ("class_weights", None)) if loss is not None else ():
            if (value := arguments.get(key, default)) != default:
                error = f"task.{key}={shown(value)} is of cross-entropy, which task.loss={loss} replaces"
                yield f"{error}: set task.{key}={shown(default)}"
        if isinstance(weights, list) and not any(weights):
            yield f"task.class_weights={shown(weights)} counts no sample: give a class more than 0"
    if config.flip_test and task.target.endswith(".Regression"):
        yield "flip_test=true averages an image and its mirror image, whose numbers may differ: remove it"
    for name in task.metrics:
        if name in ("loss", "count") or "/" in name:
            yield f"task.metrics.{name} cannot have this name: loss is always measured, choose another"


def _package_rules(config: Config) -> Iterator[str]:
    if config.model.target == "lockstep.models.timm" and not signatures.is_there("timm"):
        yield f"model._target_={config.model.target} {_missing('timm')}"
    for name, logger in config.logger.items():
        is_wandb = logger is not None and logger.target.endswith((".ResumableWandbLogger", ".WandbLogger"))
        if is_wandb and not signatures.is_there("wandb"):
            yield f"logger.{name} {_missing('wandb')}"


def _missing(package: str) -> str:
    return f"needs the package {package}: install it with: pip install 'lockstep[{package}]'"


def _data_rules(config: Config) -> Iterator[str]:
    arguments = config.data.arguments()
    yield from _class_rules(config)
    val, test, mean, std = (arguments.get(name) for name in ("val_fraction", "test_fraction", "mean", "std"))
    if isinstance(val, float) and isinstance(test, float) and val + test >= 1:
        yield f"data.val_fraction={val} and data.test_fraction={test} leave nothing to train on: use smaller ones"
    is_narrowed = isinstance(percent := arguments.get("crop_percent"), float) and percent < 1
    if is_narrowed and arguments.get("fit") == "letterbox":
        yield f"data.crop_percent={percent} crops, and data.fit=letterbox keeps the whole image: remove one of them"
    if (is_narrowed or arguments.get("fit") == "letterbox") and arguments.get("image_size", 0) is None:
        yield "data.image_size=null keeps images as they are: set it, or remove data.crop_percent and data.fit"
    if config.augment.has_crops and config.data.memory == "device":
        yield "data.memory=device, but augment.random_resized_crop crops in host memory: use data.memory=auto"
    if config.data.target != "lockstep.data.dataset":
        return
    if (mean is None) != (std is None):
        yield f"data.mean={shown(mean)} and data.std={shown(std)}: give both, or neither to have them measured"
    if config.augment.has_crops:
        hint = "use torchvision.transforms.v2.RandomResizedCrop there, and augment.random_resized_crop.scale=null"
        yield f"augment.random_resized_crop is not for data=dataset, whose transforms crop: {hint}"


def _class_rules(config: Config) -> Iterator[str]:
    data, task = config.data, config.task
    if data.balance and task.arguments().get("class_weights") == measured.BALANCED:
        both = f"data.balance={data.balance:g} and task.class_weights=balanced"
        yield f"{both} both make up for unequal classes: use one of them"
    if data.fold >= (data.folds or 1):
        hint = f"number them from 0 to {data.folds - 1}" if data.folds else "set data.folds=5"
        yield f"data.fold={data.fold} is not one of data.folds={shown(data.folds)}: {hint}"
    if config.trainer.overfit_batches and (data.balance or data.folds):
        error = f"trainer.overfit_batches={config.trainer.overfit_batches} trains and tests on the first batches"
        yield f"{error}: set data.balance=0 and data.folds=null"


def _augment_rules(config: Config) -> Iterator[str]:
    num_ops = config.augment.rand_augment.num_ops
    if config.augment.trivial and num_ops:
        yield f"augment.trivial=true and augment.rand_augment.num_ops={num_ops} are the same operations: use one"


def _notify_rules(config: Config) -> Iterator[str]:
    try:
        shlex.split(config.notify.command or "")
    except ValueError as error:
        yield f"notify.command is not a valid command line: {error}, close the quotes"

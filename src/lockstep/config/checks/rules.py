"""Rules between keys. A new rule is added to `_rules`.

Those about the number of workers are in workers.py, of callbacks in callback_rules.py, of a cluster in slurm_rules.py.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator

from lockstep.config import features
from lockstep.config.checks import callback_rules, metric_names, signatures, slurm_rules
from lockstep.config.checks.workers import resolve_workers
from lockstep.config.errors import Error, literal
from lockstep.config.schema.configuration import BenchmarkConfig, Config
from lockstep.system.trees import at


def conflicts(config: Config) -> list[Error]:
    """Return the errors between keys, each of which is valid."""
    rules: tuple[Callable[[Config], Iterable[Error]], ...] = (
        _module_rules, _task_rules, _data_rules, _augment_rules, _package_rules, _batch_rules,
        _optimizer_rules, callback_rules.errors, _notify_rules, _benchmark_rules,
        slurm_rules.errors, *features.used_features("rules", config),
    )  # fmt: skip
    # each environment of a benchmark has its own workers, and its job its own request
    workers = () if isinstance(config, BenchmarkConfig) else resolve_workers(config).errors
    return [*(error for rule in rules for error in rule(config)), *workers]


def _batch_rules(config: Config) -> Iterator[Error]:
    parts, size = config.trainer.accumulate_grad_batches, config.global_batch_size
    if size % parts:
        fix = "a batch is cut into so many equal parts"
        yield Error(f"trainer.accumulate_grad_batches={parts}", f"does not divide global_batch_size={size}", fix)


def _optimizer_rules(config: Config) -> Iterator[Error]:
    if config.scale_with_workers and config.optimizer.lr is None:
        yield Error("scale_with_workers=true", "multiplies optimizer.lr, which has no value", "add +optimizer.lr=...")


def _benchmark_rules(config: Config) -> Iterator[Error]:
    if not isinstance(config, BenchmarkConfig):
        return
    if (nodes := config.trainer.num_nodes) > 1 and config.cluster.name != "slurm":
        yield Error(f"trainer.num_nodes={nodes}", "is for the job of a benchmark", "add cluster=slurm, or remove it")
    if config.init_from is not None:
        yield Error(f"init_from={config.init_from}", "is not for a benchmark, which starts new runs", "remove it")
    if config.has_own_module:
        yield Error(f"module._target_={config.module.target}", "replaces what a benchmark measures", "remove it")
    elif "val/accuracy" not in metric_names.names(config):
        yield Error("task.metrics", "does not measure val/accuracy, which a benchmark compares", "add it")


def _module_rules(config: Config) -> Iterator[Error]:
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
    problem = f"is of Lockstep's own module, which module._target_={config.module.target} replaces"
    for key, value, default, hint in settings:
        if value != default:
            yield Error(f"{key}={literal(value)}", problem, f"remove it, or {hint}")


def _task_rules(config: Config) -> Iterator[Error]:
    task, arguments = config.task, config.task.arguments()
    if task.target == "lockstep.tasks.Classification":
        weights, loss = arguments.get("class_weights"), at(arguments, ["loss", "_target_"])
        for key, default in (("label_smoothing", 0), ("class_weights", None)) if loss is not None else ():
            if (value := arguments.get(key, default)) != default:
                problem = f"is of cross-entropy, which task.loss={loss} replaces"
                yield Error(f"task.{key}={literal(value)}", problem, f"set task.{key}={literal(default)}")
        if isinstance(weights, list) and not any(weights):
            yield Error(f"task.class_weights={literal(weights)}", "counts no sample", "give a class more than 0")
    if config.flip_test and task.target.endswith(".Regression"):
        yield Error("flip_test=true", "averages an image and its mirror image, whose numbers may differ", "remove it")
    for name in task.metrics:
        if name in ("loss", "count") or "/" in name:
            yield Error(f"task.metrics.{name}", "cannot have this name", "loss is always measured, choose another")


def _package_rules(config: Config) -> Iterator[Error]:
    needed = [("timm", f"model._target_={config.model.target}")] * (config.model.target == "lockstep.models.timm")
    for name, logger in config.logger.items():
        if logger is not None and logger.target.endswith((".ResumableWandbLogger", ".WandbLogger")):
            needed.append(("wandb", f"logger.{name}"))
    for package, key in needed:
        if not signatures.is_there(package):
            yield Error(key, f"needs the package {package}", f"install it with: pip install 'lockstep[{package}]'")


def _data_rules(config: Config) -> Iterator[Error]:
    arguments = config.data.arguments()
    yield from _class_rules(config)
    val, test, mean, std = (arguments.get(name) for name in ("val_fraction", "test_fraction", "mean", "std"))
    if isinstance(val, float) and isinstance(test, float) and val + test >= 1:
        key = f"data.val_fraction={val} and data.test_fraction={test}"
        yield Error(key, "leave nothing to train on", "use smaller ones")
    is_narrowed = isinstance(percent := arguments.get("crop_percent"), float) and percent < 1
    if is_narrowed and arguments.get("fit") == "letterbox":
        yield Error(f"data.crop_percent={percent}", "crops, and data.fit=letterbox keeps the whole image", "remove one")
    if (is_narrowed or arguments.get("fit") == "letterbox") and arguments.get("image_size", 0) is None:
        hint = "set it, or remove data.crop_percent and data.fit"
        yield Error("data.image_size=null", "keeps images as they are", hint)
    if config.augment.has_crops and config.data.memory == "device":
        problem = ", but augment.random_resized_crop crops in host memory"
        yield Error("data.memory=device", problem, "use data.memory=auto")
    if config.data.target != "lockstep.data.dataset":
        return
    if (mean is None) != (std is None):
        yield Error(
            f"data.mean={literal(mean)} and data.std={literal(std)}", "belong together", "give both, or neither"
        )
    if config.augment.has_crops:
        hint = "set it to null, and use v2.RandomResizedCrop there"
        yield Error("augment.random_resized_crop.scale", "is not for data=dataset", hint)


def _class_rules(config: Config) -> Iterator[Error]:
    data, task = config.data, config.task
    if data.balance and task.arguments().get("class_weights") == metric_names.BALANCED:
        both = f"data.balance={data.balance:g} and task.class_weights=balanced"
        yield Error(both, "both make up for unequal classes", "use one of them")
    if data.fold >= (data.folds or 1):
        hint = f"number them from 0 to {data.folds - 1}" if data.folds else "set data.folds=5"
        yield Error(f"data.fold={data.fold}", f"is not one of data.folds={literal(data.folds)}", hint)
    if (count := config.trainer.overfit_batches) and (data.balance or data.folds):
        hint = "set data.balance=0 and data.folds=null"
        yield Error(f"trainer.overfit_batches={count}", "trains and tests on the first batches", hint)


def _augment_rules(config: Config) -> Iterator[Error]:
    num_ops = config.augment.rand_augment.num_ops
    if config.augment.trivial and num_ops:
        both = f"augment.trivial=true and augment.rand_augment.num_ops={num_ops}"
        yield Error(both, "are the same operations", "use one")


def _notify_rules(config: Config) -> Iterator[Error]:
    try:
        shlex.split(config.notify.command or "")
    except ValueError as error:
        yield Error("notify.command", "is not a valid command line", f"{error}, close the quotes")

"""First round of the check, which reports all errors of a configuration before any work starts.

It imports no target. The second round is `signatures.errors`. Rules for the number of workers are
in workers.py, for callbacks in callback_rules.py, and for a cluster in slurm_rules.py.
"""

from collections.abc import Iterator, Mapping

from omegaconf import DictConfig
from pydantic import ValidationError

from lockstep.config.checks import (
    callback_rules,
    feature_rules,
    metric_names,
    signatures,
    slurm_rules,
)
from lockstep.config.checks.workers import resolve_workers
from lockstep.config.composing.compose import plain_tree
from lockstep.config.errors import ConfigError, Error, literal, refuse
from lockstep.config.schema.configuration import BenchmarkConfig, Config, root
from lockstep.config.schema.legal_keys import Groups
from lockstep.config.schema.target_sections import SERVICES
from lockstep.system.trees import Tree, at


def check_config(cfg: DictConfig, groups: Groups | None = None) -> Config:
    """Return the typed configuration.

    Raises ConfigError with every error of the schema and of this machine.
    """
    tree, unresolved = plain_tree(cfg)
    return check_tree(tree, groups, unresolved)


def check_tree(
    tree: Tree,
    groups: Groups | None = None,
    unresolved: Mapping[str, Error] | None = None,
) -> Config:
    """Return the typed configuration of plain values.

    Rules between keys are checked only if each key is valid. `unresolved` maps a key without a
    value to the error that explains why it has none. Raises ConfigError, with one error for each
    key of the schema.
    """
    errors = dict(unresolved or {})
    tree = metric_names.resolve_auto(tree)
    try:
        config = root(tree).model_validate(tree)
    except ValidationError as error:
        # Only an invalid configuration needs this import.
        from lockstep.config.checks.schema_errors import schema_errors

        for key, message in schema_errors(tree, error, groups or {}):
            errors.setdefault(key, message)
        raise ConfigError(*errors.values()) from error
    messages = list(errors.values())
    # On a resume, changes of the saved run are reported first.
    if tree.get("resume") is None:
        messages += conflicts(config)
    refuse(messages)
    return config


def conflicts(config: Config) -> list[Error]:
    """Return the errors between keys, each of which is valid."""
    errors: list[Error] = []
    for rule in (
        feature_rules.errors,
        _task_rules,
        _class_rules,
        _data_rules,
        _selection_rules,
        _package_rules,
        _batch_rules,
        callback_rules.errors,
        slurm_rules.errors,
    ):
        errors += rule(config)
    # The environments of a benchmark have their own workers.
    if not isinstance(config, BenchmarkConfig):
        errors += resolve_workers(config).errors
    return errors


def _batch_rules(config: Config) -> Iterator[Error]:
    num_micro_batches, size = config.trainer.accumulate_grad_batches, config.global_batch_size
    if size % num_micro_batches:
        hint = "a batch is split into so many equal parts"
        yield Error(
            "range",
            f"trainer.accumulate_grad_batches={num_micro_batches}",
            f"does not divide global_batch_size={size}",
            hint,
        )
    if config.scale_with_workers and config.optimizer.lr is None:
        yield Error(
            "missing",
            "scale_with_workers=true",
            "multiplies optimizer.lr, which has no value",
            "add +optimizer.lr=...",
        )


def _task_rules(config: Config) -> Iterator[Error]:
    task, arguments = config.task, config.task.arguments()
    if task.target == "lockstep.tasks.Classification":
        weights, loss = arguments.get("class_weights"), at(arguments, ["loss", "_target_"])
        for key, default in (
            (("label_smoothing", 0), ("class_weights", None)) if loss is not None else ()
        ):
            if (value := arguments.get(key, default)) != default:
                problem = f"is a setting of cross-entropy, which task.loss={loss} replaces"
                yield Error(
                    "conflict",
                    f"task.{key}={literal(value)}",
                    problem,
                    f"set task.{key}={literal(default)}",
                )
        if isinstance(weights, list) and not any(weights):
            yield Error(
                "value",
                f"task.class_weights={literal(weights)}",
                "counts no sample",
                "give a class more than 0",
            )
    if task.target.endswith(".Regression") and config.data.arguments().get("targets") == "classes":
        yield Error(
            "conflict",
            "data.targets=classes",
            "is not for task=regression",
            "set data.targets=numbers",
        )
    for metric in task.metrics:
        if metric in ("loss", "count") or "/" in metric:
            yield Error(
                "conflict",
                f"task.metrics.{metric}",
                "cannot have this name",
                "loss is always measured, choose another",
            )


def _package_rules(config: Config) -> Iterator[Error]:
    requirements = [("timm", f"model._target_={config.model.target}")] * (
        config.model.target == "lockstep.models.timm"
    )
    for name, logger in config.logger.items():
        if logger is not None and logger.target in SERVICES:
            requirements.append((SERVICES[logger.target][0], f"logger.{name}"))
    for package, key in requirements:
        if not signatures.is_there(package):
            yield Error(
                "not-installed",
                key,
                f"needs the package {package}",
                f"install it with: pip install {package}",
            )


def _data_rules(config: Config) -> Iterator[Error]:
    arguments = config.data.arguments()
    val, test, mean, std = (
        arguments.get(name) for name in ("val_fraction", "test_fraction", "mean", "std")
    )
    if isinstance(val, float) and isinstance(test, float) and val + test >= 1:
        key = f"data.val_fraction={val} and data.test_fraction={test}"
        yield Error("range", key, "leave nothing to train on", "use smaller ones")
    is_narrowed = isinstance(percent := arguments.get("crop_percent"), float) and percent < 1
    if is_narrowed and arguments.get("fit") == "letterbox":
        yield Error(
            "conflict",
            f"data.crop_percent={percent}",
            "crops, and data.fit=letterbox keeps the whole image",
            "remove one",
        )
    if (is_narrowed or arguments.get("fit") == "letterbox") and arguments.get(
        "image_size", 0
    ) is None:
        hint = "set it, or remove data.crop_percent and data.fit"
        yield Error("conflict", "data.image_size=null", "keeps images as they are", hint)
    changes = [*config.augment.custom_sections]
    changes += ["augment.random_resized_crop"] if config.augment.has_crops else []
    if changes and config.data.memory == "device":
        problem = f", but {changes[0]} changes images in host memory"
        yield Error("conflict", "data.memory=device", problem, "use data.memory=auto")
    is_dataset = config.data.target == "lockstep.data.dataset"
    if is_dataset and (mean is None) != (std is None):
        settings = f"data.mean={literal(mean)} and data.std={literal(std)}"
        yield Error("conflict", settings, "belong together", "give both, or neither")
    if is_dataset and config.augment.has_crops:
        hint = "set it to null, and use v2.RandomResizedCrop there"
        yield Error(
            "conflict", "augment.random_resized_crop.scale", "is not for data=dataset", hint
        )
    num_ops = config.augment.rand_augment.num_ops
    if config.augment.trivial and num_ops:
        settings = f"augment.trivial=true and augment.rand_augment.num_ops={num_ops}"
        yield Error("conflict", settings, "are the same operations", "use one")


def _class_rules(config: Config) -> Iterator[Error]:
    data, task = config.data, config.task
    if data.balance and task.arguments().get("class_weights") == metric_names.BALANCED:
        settings = f"data.balance={data.balance:g} and task.class_weights=balanced"
        yield Error("conflict", settings, "both make up for unequal classes", "use one of them")
    if data.fold >= (data.folds or 1):
        hint = f"number them from 0 to {data.folds - 1}" if data.folds else "set data.folds=5"
        yield Error(
            "range",
            f"data.fold={data.fold}",
            f"is not one of data.folds={literal(data.folds)}",
            hint,
        )
    if (count := config.trainer.overfit_batches) and (data.balance or data.folds):
        hint = "set data.balance=0 and data.folds=null"
        yield Error(
            "conflict",
            f"trainer.overfit_batches={count}",
            "trains and tests on the first batches",
            hint,
        )


def _selection_rules(config: Config) -> Iterator[Error]:
    """Yield the errors of parts that would select by the test images."""
    if not config.data.validate_on_test:
        return
    selecting = {
        f"callbacks.{name}={section.target}": f"set callbacks.{name}=null"
        for name, section in config.callbacks.items()
        if section is not None
        and not section.target.endswith(".ModelCheckpoint")
        and str(section.arguments().get("monitor")).startswith("val/")
    }
    if config.calibrate:
        selecting["calibrate=true"] = "set calibrate=false"
    if config.search is not None:
        selecting["search"] = "use a grid, which selects nothing: -m optimizer.lr=0.1,0.2"
    if config.optimizer.is_newton:
        selecting[f"optimizer._target_={config.optimizer.target}"] = "use optimizer=sgd"
    if config.scheduler.target.endswith(".ReduceLROnPlateau"):
        selecting[f"scheduler._target_={config.scheduler.target}"] = "use scheduler=constant"
    for key, hint in selecting.items():
        problem = "would select by the test images (data.validate_on_test=true)"
        yield Error("conflict", key, problem, hint)

"""Names the metrics of a run and the direction in which each is better, before anything starts."""

from collections.abc import Mapping
from typing import Any

from lockstep.config.checks import signatures
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import CLASSIFIER
from lockstep.system import processes
from lockstep.system.trees import Tree, at

AUTO = "auto"
BALANCED = "balanced"  # Value of task.class_weights until a run has begun
# These are the metrics in conf/. The direction of other metrics requires an import of torch.
HIGHER_IS_BETTER = {
    "lockstep.tasks.Accuracy": True,
    "torchmetrics.classification.MultilabelAveragePrecision": True,
    "torchmetrics.classification.MultilabelF1Score": True,
    "torchmetrics.MeanAbsoluteError": False,
    "torchmetrics.MeanSquaredError": False,
}


def resolve_auto(tree: Tree) -> Tree:
    """Replace `auto` in callbacks.

    `monitor` becomes the first metric, and `mode` the direction in which the metric is better.
    """
    callbacks = tree.get("callbacks")
    if not isinstance(callbacks, dict):
        return tree
    resolved = {name: _resolve_callback(callback, tree) for name, callback in callbacks.items()}
    return tree | {"callbacks": resolved}


def _resolve_callback(callback: Any, tree: Tree) -> Any:
    if not isinstance(callback, dict):
        return callback
    metrics: dict[str, str] = {}
    sections = at(tree, ["task", "metrics"])
    has_custom_module = at(tree, ["module", "_target_"]) not in (None, CLASSIFIER)
    if isinstance(sections, dict) and not has_custom_module:
        targets = {name: at(section, ["_target_"]) for name, section in sections.items()}
        metrics = {name: str(target) for name, target in targets.items() if target}
    settings = dict(callback)
    if settings.get("monitor") == AUTO:
        settings["monitor"] = _first(metrics)
    if settings.get("mode") == AUTO:
        settings["mode"] = direction(settings.get("monitor"), metrics) or AUTO
    return settings


def targets(config: Config) -> dict[str, str]:
    """Return the target of every metric by its name.

    The result is empty for a custom module, whose metrics are not known.
    """
    if config.has_custom_module:
        return {}
    return {
        name: section.target for name, section in config.task.metrics.items() if section is not None
    }


def _first(metrics: Mapping[str, str]) -> str:
    return f"val/{next(iter(metrics), 'loss')}"


def default(config: Config) -> tuple[str, bool]:
    """Return the metric that decides if no checkpoint names one, and whether higher is better."""
    metrics = targets(config)
    return _first(metrics), direction(_first(metrics), metrics) == "max"


def names(config: Config) -> tuple[str, ...]:
    """Return the names of all metrics of training and validation.

    For a custom module, this is the one metric that it must log.
    """
    if config.has_custom_module:
        return ("val/loss",)
    # The training of this task measures its accuracy.
    is_scored = config.task.target == "lockstep.tasks.Classification"
    train_metrics = ("train/loss", "train/accuracy") if is_scored else ("train/loss",)
    return (*train_metrics, "val/loss", *(f"val/{name}" for name in targets(config)))


def direction(metric: Any, metrics: Mapping[str, str]) -> str | None:
    """Return "max" or "min" for a metric, or None if its direction is not known."""
    kind = str(metric).partition("/")[2]
    if kind == "loss":
        return "min"
    if kind == "accuracy" and kind not in metrics:
        return "max"  # The training measures this accuracy.
    target = metrics.get(kind)
    if target is None:
        return None
    is_higher_better = HIGHER_IS_BETTER.get(target)
    if is_higher_better is None:
        is_higher_better = processes.call(_is_higher_better, target)
    if is_higher_better is None:
        return None
    return "max" if is_higher_better else "min"


def _is_higher_better(target: str) -> bool | None:
    """Return the attribute `higher_is_better` of a metric.

    Returns True for a metric that cannot be imported, which the second round reports.
    """
    try:
        return getattr(signatures.load(target), "higher_is_better", None)
    except Exception:
        # Importing a module may raise any error.
        return True

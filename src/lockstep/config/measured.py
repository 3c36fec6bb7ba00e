"""What a run measures, by name, and in which direction it is better: known before anything starts."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.config import signatures
from lockstep.config.schema import Config
from lockstep.config.target_sections import CLASSIFIER
from lockstep.system import processes
from lockstep.system.trees import at

AUTO = "auto"
# what a training shows of its own samples beside the loss, by the task
SCORED = {"lockstep.tasks.Classification": ("accuracy",)}
# of the metrics in conf/: others are asked, which takes an import of torch
HIGHER_IS_BETTER = {
    "lockstep.tasks.Accuracy": True,
    "torchmetrics.classification.MultilabelAveragePrecision": True,
    "torchmetrics.classification.MultilabelF1Score": True,
    "torchmetrics.MeanAbsoluteError": False,
    "torchmetrics.MeanSquaredError": False,
}


def resolved(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree of a configuration whose callbacks say what they watch, and in which direction, where they said auto."""
    callbacks = tree.get("callbacks")
    if not isinstance(callbacks, dict) or not any(AUTO in _watching(callback) for callback in callbacks.values()):
        return tree
    tree = copy.deepcopy(tree)
    metrics = _metrics(tree)
    for callback in tree["callbacks"].values():
        if AUTO not in _watching(callback):
            continue
        if callback.get("monitor") == AUTO:
            callback["monitor"] = f"val/{first(list(metrics))}"
        better = direction(callback.get("monitor"), metrics)
        if callback.get("mode") == AUTO and better is not None:
            callback["mode"] = better
    return tree


def _watching(callback: Any) -> tuple[Any, Any]:
    return (callback.get("monitor"), callback.get("mode")) if isinstance(callback, dict) else (None, None)


def _metrics(tree: Mapping[str, Any]) -> dict[str, str]:
    """The target of every metric by its name; nobody knows what a module of the user's own measures."""
    metrics = at(tree, ["task", "metrics"]) if at(tree, ["module", "_target_"]) in (None, CLASSIFIER) else None
    sections = metrics if isinstance(metrics, dict) else {}
    return {name: str(section.get("_target_")) for name, section in sections.items() if isinstance(section, dict)}


def targets(config: Config) -> dict[str, str]:
    """The target of every metric of a configuration by its name; nobody knows those of a module of the user's own."""
    if config.has_own_module:
        return {}
    return {name: section.target for name, section in config.task.metrics.items() if section is not None}


def first(metrics: Sequence[str]) -> str:
    """What decides where nobody says it: the first metric of the task, the loss without one."""
    return metrics[0] if metrics else "loss"


def default(config: Config) -> tuple[str, bool]:
    """What a run comes to where no checkpoint says another: the name, and whether more of it is better."""
    metrics = targets(config)
    name = f"val/{first(list(metrics))}"
    return name, direction(name, metrics) == "max"


def names(config: Config) -> tuple[str, ...]:
    """All that is measured of training and validation; of a module of the user's own what it must measure."""
    if config.has_own_module:
        return ("val/loss",)
    trained, validated = ("loss", *SCORED.get(config.task.target, ())), ("loss", *targets(config))
    return (*(f"train/{name}" for name in trained), *(f"val/{name}" for name in validated))


def direction(name: Any, metrics: Mapping[str, str]) -> str | None:
    """Whether the metric called `name` is better when it is "max" or "min"; None where nobody knows."""
    kind = str(name).partition("/")[2]
    if kind == "loss":
        return "min"
    if kind == "accuracy" and kind not in metrics:
        return "max"  # of a training
    target = metrics.get(kind)
    if target is None:
        return None
    is_higher_better = HIGHER_IS_BETTER.get(target)
    if is_higher_better is None:
        is_higher_better = processes.call(_is_higher_better, target)
    return None if is_higher_better is None else "max" if is_higher_better else "min"


def _is_higher_better(target: str) -> bool | None:
    """What a metric says of itself; anything of one that cannot be imported, which the second round refuses."""
    try:
        return getattr(signatures.load(target), "higher_is_better", None)
    except Exception:  # whatever its module raises
        return True

"""Whether a library of a setting is there, and its networks, read from their source texts: no torch, no timm."""

import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.config import signatures
from lockstep.config.faults import near, question
from lockstep.system.trees import at

LIBRARIES = {"lockstep.models.torchvision": "torchvision", "lockstep.models.timm": "timm"}
WANDB_LOGGERS = (".ResumableWandbLogger", ".WandbLogger")
REGISTERED = re.compile(r"^@register_model(?:\(\))?\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)


def library_faults(tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, fault) of a network that its library does not have, and of a library that is not installed."""
    yield from _network_faults(tree)
    loggers = tree.get("logger")
    for name, section in loggers.items() if isinstance(loggers, dict) else ():
        target = at(section, ["_target_"])
        if isinstance(target, str) and target.endswith(WANDB_LOGGERS) and not signatures.is_there("wandb"):
            yield f"logger.{name}._target_", f"logger.{name} {_missing('wandb')}"


def _missing(package: str) -> str:
    return f"needs the package {package}, which is not here: install it by: pip install 'lockstep[{package}]'"


def _network_faults(tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
    target, name = at(tree, ["model", "_target_"]), at(tree, ["model", "name"])
    package = LIBRARIES.get(target) if isinstance(target, str) else None
    if package is None:
        return
    if not signatures.is_there(package):
        yield "model._target_", f"model._target_={target} {_missing(package)}"
    elif isinstance(name, str) and name.partition(".")[0] not in (names := _names(package)):
        cure = f"its documents list the {len(names)} there are"
        yield "model.name", f"model.name={name} is no network of {package}" + question(near(name, names, 3), cure)


@cache
def _names(package: str) -> frozenset[str]:
    """The networks that a library registers for classification."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    texts = (path.read_text(encoding="utf-8") for path in Path(spec.origin).parent.joinpath("models").glob("*.py"))
    return frozenset(name for text in texts for name in REGISTERED.findall(text))

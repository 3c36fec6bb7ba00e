"""A custom LightningModule, built from the configuration, with its companion callback."""

import hashlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torchmetrics.metric import Metric

from lockstep import __version__
from lockstep.assembly.session import Session
from lockstep.callbacks.own_module import Companion
from lockstep.config import build
from lockstep.config.checks import signatures
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import Config
from lockstep.distributed.batch_norm import refuse_inexact_norms
from lockstep.distributed.rng import replace_dropout, seed_of
from lockstep.models.classifier import ImageFormat
from lockstep.runs import verified
from lockstep.tasks import reduction

LIBRARIES = ("builtins", "lightning", "lockstep", "timm", "torch", "torchmetrics", "torchvision")


def build_module(session: Session, images: ImageFormat, total_steps: int) -> tuple[L.LightningModule, Companion]:
    """Build the custom LightningModule, with those standard arguments that it takes, and its companion.

    Every rank must call it. Raises ConfigError if it cannot be built, or its norms or draws cannot be exact.
    """
    config = session.config
    shape, num_classes = images.image_shape, len(images.class_names)
    torch.manual_seed(seed_of(config.seed, "weights"))
    known: dict[str, Callable[[], Any]] = {
        "net": lambda: build.build(config.model, in_channels=shape[0], num_classes=num_classes),
        "optimizer": lambda: build.build(config.optimizer),
        "image_shape": lambda: shape,
        "num_classes": lambda: num_classes,
        "total_steps": lambda: total_steps,
    }
    signature = signatures.find(config.module.target)
    taken = [name for name in known if signature is not None and name in signature.names]
    with build.section_errors(config, "module"):
        module = build.build(config.module, **{name: known[name]() for name in taken})
        if not isinstance(module, L.LightningModule):
            raise TypeError("it is not a LightningModule of lightning")
        refuse_inexact_norms(module)
        dropouts = replace_dropout(module, config.seed)
        for path, part in module.named_modules():
            if isinstance(part, Metric):
                reduction.prepare_to_log(f"module.{path}", part)
    watched = {
        f"callbacks.{name}.monitor": str(section.arguments()["monitor"])
        for name, section in config.callbacks.items()
        if section is not None and section.arguments().get("monitor") is not None
    }
    module = module.double() if session.precision == "float64" else module
    return module, Companion(f"module._target_={config.module.target}", images, dropouts, watched)


def digest(config: Config, module: L.LightningModule) -> str:
    """Hash the settings of a module and its network, and the source files of their classes, without libraries."""
    tree = config_file.to_tree(config)
    found = hashlib.sha256(json.dumps([__version__, tree["module"], tree["model"]], sort_keys=True).encode())
    classes = {each for part in module.modules() for each in type(part).__mro__}
    own = {each for each in classes if each.__module__.partition(".")[0] not in LIBRARIES}
    for path in sorted({inspect.getsourcefile(each) or "" for each in own}):
        found.update(Path(path).read_bytes() if path else b"")
    return found.hexdigest()


def header_row(config: Config, module: L.LightningModule) -> tuple[str, str]:
    """Return the row of a header about the date on which `lockstep verify` found a custom module exact, if it did."""
    known = verified.recall(digest(config, module))
    return "exact", known or "not verified: run lockstep verify with these settings"

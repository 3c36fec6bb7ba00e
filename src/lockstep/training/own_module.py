"""A LightningModule of the user's own, made from the configuration, with the callback that belongs to it."""

from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torchmetrics.metric import Metric

from lockstep.callbacks.own_module import Companion
from lockstep.config import build, signatures
from lockstep.distributed.batch_norm import refuse_inexact_norms
from lockstep.distributed.rng import replace_dropout, seed_of
from lockstep.models.classifier import ImageFormat
from lockstep.tasks import reduction
from lockstep.training.session import Session


def made(session: Session, images: ImageFormat, *, total_steps: int) -> tuple[L.LightningModule, Companion]:
    """The LightningModule of the user's own, with what it asks for, and the callback that belongs to it.

    Every rank must call it. Raises ConfigError for one that cannot be made, or whose norms or draws cannot be exact.
    """
    config = session.config
    name = f"module._target_={config.module.target}"
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
    asked = [name for name in known if signature is not None and name in signature.names]
    with build.answering(config, "module"):
        module = build.build(config.module, **{name: known[name]() for name in asked})
        if not isinstance(module, L.LightningModule):
            raise TypeError("it is no LightningModule of lightning")
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
    return module, Companion(name, dropouts, watched)

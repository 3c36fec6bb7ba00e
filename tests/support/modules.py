"""The Lightning module around a network, for tests without a run."""

import functools
from typing import Any

import torch
from torch import nn

from lockstep.models import layout
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.models.schedules import constant


def classifier(net: nn.Module, **changes: Any) -> Classifier:
    """The module of `net` for images (1, 3, 3) of four classes and plain steps, but for `changes`."""
    plain = {
        "image_format": ImageFormat(("a", "b", "c", "d"), (1, 3, 3), (0.5,), (0.25,)),
        "optimizer": functools.partial(torch.optim.SGD, lr=0.1),
        "scheduler": constant,
        "total_steps": 1,
        "accumulate_grad_batches": 1,
        "gradient_clip_norm": None,
        "label_smoothing": 0.0,
        "uses_bfloat16": False,
        "layout": layout.chosen("auto", None),
        "compile_mode": None,
        "has_flip_test": False,
        "seed": 0,
        "log_every_n_steps": 1,
    }
    return Classifier(net, **{**plain, **changes})

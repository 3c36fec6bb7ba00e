"""Classifiers for tests without a run."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import lightning as L
import torch
from torch import nn

from lockstep.distributed.batch import Batch
from lockstep.distributed.partition import Shard
from lockstep.models import layout
from lockstep.models.classifier import Classifier, Execution, ImageFormat, Recipe
from lockstep.models.schedules import Schedule, constant
from lockstep.tasks import Accuracy, Classification, Task


def classification(
    label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None
) -> Classification:
    return Classification(loss=None, label_smoothing=label_smoothing, class_weights=class_weights)


def classifier(
    net: nn.Module,
    task: Task | None = None,
    kind: Callable[..., Classifier] = Classifier,
    **changes: Any,
) -> Classifier:
    """Return a classifier of `net` for images (1, 3, 3) of four classes.

    `changes` replace other arguments and parts of them.
    """
    recipe = Recipe(
        optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        scheduler=Schedule(constant),
        rules=(),
        total_steps=1,
        accumulate_grad_batches=1,
        gradient_clip_norm=None,
        seed=0,
        log_every_n_steps=1,
    )
    of_recipe = {
        field.name: changes.pop(field.name) for field in fields(Recipe) if field.name in changes
    }
    of_execution = {
        field.name: changes.pop(field.name) for field in fields(Execution) if field.name in changes
    }
    plain = {
        "image_format": ImageFormat(("a", "b", "c", "d"), (1, 3, 3), (0.5,), (0.25,)),
        "metrics": {"accuracy": Accuracy(num_classes=4)},
        "recipe": replace(recipe, **of_recipe),
        "execution": Execution(**{"layout": layout.choose_layout("auto", None), **of_execution}),
    }
    return kind(net, task or classification(), **{**plain, **changes})


def batch_of(rank: int, micro_step: int) -> Batch:
    """A micro-batch for the loss guard, of two samples without pixels."""
    empty = torch.empty(0)
    shard = Shard(epoch=1, step=0, micro_step=micro_step, size=4, lo=0, hi=2, group_size=8)
    return Batch(empty, empty, torch.tensor([10 * rank, 10 * rank + 1]), shard)


def bare_trainer(**settings: Any) -> L.Trainer:
    """Return Lightning's CPU trainer without a logger, checkpoints, bars and a sampler."""
    off = (
        "logger",
        "enable_checkpointing",
        "enable_progress_bar",
        "enable_model_summary",
        "use_distributed_sampler",
    )
    return L.Trainer(
        **{"accelerator": "cpu", "num_sanity_val_steps": 0, **dict.fromkeys(off, False), **settings}
    )

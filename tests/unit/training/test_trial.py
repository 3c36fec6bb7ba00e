"""Targets that a task cannot learn are refused before the first step, with their samples and the task to choose."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep.config import compose, validation
from lockstep.config.errors import ConfigError
from lockstep.config.schema import Config
from lockstep.data import Images
from lockstep.data.images.samples import Samples
from lockstep.tasks import Classification, Multilabel, Regression, Task
from lockstep.training.trial import refuse_targets
from tests.support.harness import SMALL
from tests.support.modules import classification, classifier

COUNT = 6
TASKS = {
    "classification": classification(),
    "multilabel": Multilabel(loss=nn.BCEWithLogitsLoss(reduction="none")),
    "regression": Regression(loss=nn.MSELoss(reduction="none")),
}
CLASSES = torch.arange(COUNT) % 3
LABELS = torch.arange(2 * COUNT).reshape(COUNT, 2) % 2
NUMBERS = torch.arange(2.0 * COUNT).reshape(COUNT, 2)
MASKS = (torch.arange(COUNT * 16) % 3).reshape(COUNT, 4, 4)


def with_value(targets: Tensor, value: float) -> Tensor:
    """Sample 4 has another value."""
    changed = targets.clone()
    changed[4] = value
    return changed


@pytest.fixture(scope="module")
def config() -> Config:
    return validation.checked(compose.composed(SMALL))


def refuse(config: Config, task: Task, outputs: Tensor, **parts: Any) -> None:
    images = {
        name: Images(torch.zeros(len(targets), 1, 4, 4), targets, [f"{name}/{row}" for row in range(len(targets))])
        for name, targets in parts.items()
    }
    data: Any = SimpleNamespace(splits=SimpleNamespace(parts=images))
    refuse_targets(config, data, classifier(nn.Identity(), task), outputs)


@pytest.mark.parametrize(
    ("name", "targets", "outputs"),
    [
        ("classification", CLASSES, (2, 3)),
        ("classification", CLASSES, (2, 7)),
        ("classification", MASKS, (2, 3, 4, 4)),
        ("multilabel", LABELS, (2, 2)),
        ("multilabel", LABELS.bool(), (2, 2)),
        ("multilabel", LABELS.float(), (2, 2)),
        ("multilabel", LABELS[:, :1], (2, 1)),
        ("multilabel", LABELS[:, 0], (2, 1)),
        ("regression", NUMBERS, (2, 2)),
        ("regression", LABELS, (2, 2)),
        ("regression", NUMBERS[:, 0], (2, 1)),
        ("regression", MASKS[:, None].float(), (2, 1, 4, 4)),
    ],
)
def test_targets_of_the_kind_and_shape_of_the_task_pass(
    config: Config, name: str, targets: Tensor, outputs: tuple[int, ...]
) -> None:
    refuse(config, TASKS[name], torch.zeros(outputs), train=targets, val=targets[:1])


KINDS = {
    "classification": "lockstep.tasks.Classification takes class numbers int64 from 0 to ",
    "multilabel": "lockstep.tasks.Multilabel takes 0 or 1 for each label (",
    "regression": "lockstep.tasks.Regression takes a finite number for each output (",
}


@pytest.mark.parametrize(
    ("name", "targets", "outputs", "fix"),
    [
        ("classification", LABELS.float(), (2, 2), "use task=multilabel or task=regression"),
        ("classification", LABELS, (2, 2), "use task=multilabel or task=regression"),
        ("classification", NUMBERS, (2, 2), "use task=regression"),
        ("classification", NUMBERS[:, :1], (2, 1), "use task=regression"),
        ("classification", NUMBERS[:, 0], (2, 1), "use task=regression"),
        ("classification", CLASSES.float(), (2, 3), "correct them"),
        ("classification", CLASSES.int(), (2, 3), "correct them"),
        ("classification", F.one_hot(CLASSES), (2, 3), "use task=multilabel or task=regression"),
        ("classification", MASKS, (2, 3), "correct them"),
        ("classification", CLASSES, (2, 3, 4, 4), "correct them"),
        ("multilabel", CLASSES, (2, 3), "use task=classification"),
        ("multilabel", MASKS, (2, 3, 4, 4), "use task=classification"),
        ("multilabel", NUMBERS, (2, 2), "use task=regression"),
        ("multilabel", LABELS, (2, 3), "correct them"),
        ("regression", CLASSES, (2, 3), "use task=classification"),
        ("regression", NUMBERS, (2, 3), "correct them"),
    ],
)
def test_targets_of_another_kind_or_shape_are_refused_with_the_task_to_choose(
    config: Config, name: str, targets: Tensor, outputs: tuple[int, ...], fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse(config, TASKS[name], torch.zeros(outputs), train=targets)
    (error,) = caught.value.errors
    assert error.startswith(f"task._target_=lockstep.tasks.Classification takes {KINDS[name].partition(' takes ')[2]}")
    assert ", and train has " in error
    assert error.endswith(f": {fix}")


@pytest.mark.parametrize(
    ("name", "targets", "shape", "shown"),
    [
        ("classification", with_value(CLASSES, 3), (2, 3), "3 in val/4"),
        ("classification", with_value(CLASSES, -1), (2, 3), "-1 in val/4"),
        ("classification", with_value(CLASSES, -100), (2, 3), "-100 in val/4"),
        ("classification", with_value(MASKS, 255), (2, 3, 4, 4), "values from 255 to 255 in val/4"),
        ("classification", with_value(MASKS, -100), (2, 3, 4, 4), "values from -100 to -100 in val/4"),
        ("multilabel", with_value(LABELS, 2), (2, 2), "[2, 2] in val/4"),
        ("multilabel", with_value(LABELS, -1), (2, 2), "[-1, -1] in val/4"),
        ("multilabel", with_value(LABELS.float(), 0.5), (2, 2), "[0.5, 0.5] in val/4"),
        ("multilabel", with_value(LABELS.float(), torch.nan), (2, 2), "[nan, nan] in val/4"),
        ("regression", with_value(NUMBERS, torch.nan), (2, 2), "[nan, nan] in val/4"),
        ("regression", with_value(NUMBERS, torch.inf), (2, 2), "[inf, inf] in val/4"),
        ("regression", with_value(NUMBERS[:, 0], -torch.inf), (2, 1), "-inf in val/4"),
    ],
)
def test_a_value_that_cannot_be_or_that_the_loss_ignores_is_told_with_its_sample(
    config: Config, name: str, targets: Tensor, shape: tuple[int, ...], shown: str
) -> None:
    with pytest.raises(ConfigError, match=r"^task\._target_=\S+ takes ") as caught:
        refuse(config, TASKS[name], torch.zeros(shape), train=targets[:4], val=targets)
    assert f", and val has {shown} (1 of 6 samples): " in str(caught.value)


def test_a_loss_of_ones_own_may_ignore_values_but_not_shapes(config: Config) -> None:
    def ignoring(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, ignore_index=255, reduction="none")

    task = Classification(loss=ignoring, label_smoothing=0.0, class_weights=None)
    refuse(config, task, torch.zeros(2, 3, 4, 4), train=with_value(MASKS, 255))
    with pytest.raises(ConfigError):  # accuracy would compare each with each
        refuse(config, task, torch.zeros(2, 3), train=CLASSES[:, None])


def test_a_task_of_ones_own_takes_any_targets(config: Config) -> None:
    refuse(config, Task(), torch.zeros(2, 3), train=with_value(NUMBERS, torch.nan))


@pytest.mark.parametrize(("stage", "split"), [("train", "train"), ("validate", "val"), ("test", "test")])
def test_targets_of_a_dataset_are_looked_at_in_each_batch(config: Config, stage: str, split: str) -> None:
    no_dataset: Any = []
    samples = Samples(no_dataset, torch.arange(COUNT), "data.train", False, torch.zeros(0, 1, 4, 4), CLASSES[:0])
    parts = {
        name: Images(samples, CLASSES[:0], [f"{name}/{row}" for row in range(COUNT)])
        for name in ("train", "val", "test")
    }
    data: Any = SimpleNamespace(splits=SimpleNamespace(parts=parts))
    module = classifier(nn.Identity())
    refuse_targets(config, data, module, torch.zeros(2, 3))
    module.trainer = SimpleNamespace(state=SimpleNamespace(stage=stage))  # pyright: ignore[reportAttributeAccessIssue]
    batch: Any = SimpleNamespace(targets=CLASSES, indices=torch.arange(COUNT))
    data.look_at_batch(batch)
    batch.targets = with_value(CLASSES, -100)
    with pytest.raises(ConfigError, match=rf"and {split} has -100 in {split}/4 \(1 of 6 samples\)"):
        data.look_at_batch(batch)

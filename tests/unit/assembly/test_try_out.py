"""Targets that a task cannot learn are rejected before the first step, with a sample."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep.assembly.try_out import refuse_augmentation, refuse_targets
from lockstep.config.errors import ConfigError
from lockstep.config.overrides import plan
from lockstep.config.schema.configuration import Config
from lockstep.data import Images
from lockstep.data.images.dataset_samples import Samples
from lockstep.distributed.batch import Batch
from lockstep.distributed.partition import Shard
from lockstep.models.classifier import Classifier
from lockstep.tasks import Classification, Multilabel, Regression, Task
from tests.support.composed import config_of
from tests.support.harness import SMALL
from tests.support.modules import classification, classifier

COUNT = 6
TASKS = {
    "classification": classification(),
    "multilabel": Multilabel(loss=nn.BCEWithLogitsLoss(reduction="none")),
    "regression": Regression(loss=nn.MSELoss(reduction="none")),
    "custom": Task(),
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
    return config_of(*SMALL)


def refuse(config: Config, task: Task, outputs: Tensor, **parts: Any) -> None:
    images = {
        name: Images(
            torch.zeros(len(targets), 1, 4, 4),
            targets,
            [f"{name}/{row}" for row in range(len(targets))],
        )
        for name, targets in parts.items()
    }
    data: Any = SimpleNamespace(splits=SimpleNamespace(by_name=images))
    refuse_targets(config, data, classifier(nn.Identity(), task), outputs)


@pytest.mark.parametrize(
    ("name", "targets", "outputs"),
    [
        ("classification", CLASSES, (2, 3)),
        ("classification", MASKS, (2, 3, 4, 4)),
        ("multilabel", LABELS, (2, 2)),
        ("multilabel", LABELS.float(), (2, 2)),
        ("multilabel", LABELS[:, 0], (2, 1)),
        ("regression", NUMBERS, (2, 2)),
        ("regression", NUMBERS[:, 0], (2, 1)),
        ("regression", MASKS[:, None].float(), (2, 1, 4, 4)),
        ("custom", with_value(NUMBERS, torch.nan), (2, 3)),
    ],
)
def test_targets_pass(config: Config, name: str, targets: Tensor, outputs: tuple[int, ...]) -> None:
    refuse(config, TASKS[name], torch.zeros(outputs), train=targets, val=targets[:1])


@pytest.mark.parametrize(
    ("name", "targets", "outputs", "expected"),
    [
        (
            "classification",
            LABELS.float(),
            (2, 2),
            "train has float32 of shape (2,) for each sample",
        ),
        ("classification", CLASSES.int(), (2, 3), "train has int32 of shape () for each sample"),
        ("classification", MASKS, (2, 3), "train has int64 of shape (4, 4) for each sample"),
        (
            "multilabel",
            CLASSES,
            (2, 3),
            "takes 0 or 1 for each label (3 of them), and train has int64",
        ),
        ("multilabel", LABELS, (2, 3), "train has int64 of shape (2,) for each sample"),
        (
            "regression",
            NUMBERS,
            (2, 3),
            "takes a finite number for each output (3 of them), and train has float32",
        ),
        (
            "classification",
            with_value(CLASSES, 3),
            (2, 3),
            "takes class numbers int64 from 0 to 2, and train has 3 in",
        ),
        (
            "classification",
            with_value(MASKS, -100),
            (2, 3, 4, 4),
            "values from -100 to -100 in train/4 (1 of 6 samp",
        ),
        (
            "multilabel",
            with_value(LABELS.float(), 0.5),
            (2, 2),
            "[0.5, 0.5] in train/4 (1 of 6 samples)",
        ),
        (
            "regression",
            with_value(NUMBERS, torch.nan),
            (2, 2),
            "[nan, nan] in train/4 (1 of 6 samples)",
        ),
        (
            "regression",
            with_value(NUMBERS[:, 0].double(), 1e39),
            (2, 1),
            "1e+39 in train/4 (1 of 6 samples)",
        ),
        (
            "regression",
            with_value(NUMBERS[:, 0], -torch.inf),
            (2, 1),
            "-inf in train/4 (1 of 6 samples)",
        ),
    ],
)
def test_targets_refused(
    config: Config, name: str, targets: Tensor, outputs: tuple[int, ...], expected: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        refuse(config, TASKS[name], torch.zeros(outputs), train=targets)


def test_custom_loss_values_ignored(config: Config) -> None:
    def ignoring(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, ignore_index=255, reduction="none")

    task = Classification(loss=ignoring, label_smoothing=0.0, class_weights=None)
    refuse(config, task, torch.zeros(2, 3, 4, 4), train=with_value(MASKS, 255))
    with pytest.raises(ConfigError):  # accuracy would compare each with each
        refuse(config, task, torch.zeros(2, 3), train=CLASSES[:, None])


def dataset_parts(*names: str, classes: Tensor | None = None) -> tuple[Any, Classifier]:
    """Return a module in training, and data with a Dataset for each split.

    The Dataset lists its classes or not.
    """
    no_dataset: Any = []
    samples = Samples(
        no_dataset,
        torch.arange(COUNT),
        "data.train",
        False,
        torch.zeros(0, 1, 4, 4),
        CLASSES[:0],
        classes,
    )
    parts = {
        name: Images(samples, CLASSES[:0], [f"{name}/{row}" for row in range(COUNT)])
        for name in names
    }
    data: Any = SimpleNamespace(splits=SimpleNamespace(by_name=parts))
    return data, classifier(nn.Identity())


def enter_stage(module: Classifier, stage: str) -> None:
    state = SimpleNamespace(stage=stage)
    module.trainer = SimpleNamespace(state=state)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("stage", "split"), [("train", "train"), ("validate", "val"), ("test", "test")]
)
def test_dataset_targets_refused(config: Config, stage: str, split: str) -> None:
    data, module = dataset_parts("train", "val", "test")
    refuse_targets(config, data, module, torch.zeros(2, 3))
    enter_stage(module, stage)
    batch: Any = SimpleNamespace(targets=CLASSES, indices=torch.arange(COUNT))
    data.look_at_batch(batch)
    batch.targets = with_value(CLASSES, -100)
    with pytest.raises(ConfigError, match=rf"and {split} has -100 in {split}/4 \(1 of 6 samples\)"):
        data.look_at_batch(batch)


@pytest.mark.parametrize(
    "setting", ["data.balance=1", "data.folds=2", "task.class_weights=[1,1,2]"]
)
def test_wrong_targets_list_refused(setting: str) -> None:
    data, module = dataset_parts("train", classes=CLASSES)
    enter_stage(module, "train")
    batch: Any = SimpleNamespace(targets=CLASSES.flip(0), indices=torch.arange(COUNT).flip(0))
    refuse_targets(plan(["model.width=4", setting]).configs[0], data, module, torch.zeros(2, 3))
    data.look_at_batch(batch)
    batch.targets = (CLASSES.flip(0) + 1) % 3
    with pytest.raises(ConfigError, match=r"data.train.targets are not those of its samples"):
        data.look_at_batch(batch)


class Moving(Task):
    def moved_targets(self, targets: Tensor, move: Any) -> Tensor:
        return move(targets)


@pytest.mark.parametrize(
    ("text", "is_movable"),
    [
        *(
            (text, True)
            for text in ("crop_padding=1", "flip=true", "vertical_flip=true", "rotation=5")
        ),
        *((text, False) for text in ("trivial=true", "rand_augment.num_ops=1")),
    ],
)
def test_moved_images_refused(text: str, is_movable: bool) -> None:
    """Unless the targets in them can move, too."""
    shard = Shard(0, 0, 0, COUNT, 0, COUNT, COUNT)
    batch = Batch(torch.zeros(COUNT, 1, 4, 4, dtype=torch.uint8), MASKS, torch.arange(COUNT), shard)
    plain = [override for override in SMALL if not override.startswith("augment")]
    config = config_of(*plain, f"augment.{text}", "augment.color_jitter.hue=0.1")
    with pytest.raises(ConfigError, match=rf"augment\.{text.partition('=')[0]}"):
        refuse_augmentation(config, Task() if is_movable else Moving(), batch)
    if is_movable:
        refuse_augmentation(config, Moving(), batch)

"""Targets that a task cannot learn are rejected before the first step, with a sample."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep.assembly import try_out
from lockstep.assembly.try_out import refuse_augmentation, refuse_targets
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError
from lockstep.config.overrides import plan
from lockstep.config.schema.configuration import Config
from lockstep.data import Images
from lockstep.data.images.dataset_samples import Samples
from lockstep.distributed.batch import Batch
from lockstep.distributed.partition import Shard
from lockstep.tasks import Classification, Multilabel, Regression, Task
from lockstep.tasks.scores import MetricError
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
    return validation.check_config(compose.compose_config(SMALL))


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
        ("classification", MASKS, (2, 3, 4, 4)),
        ("multilabel", LABELS, (2, 2)),
        ("multilabel", LABELS.float(), (2, 2)),
        ("multilabel", LABELS[:, 0], (2, 1)),
        ("regression", NUMBERS, (2, 2)),
        ("regression", NUMBERS[:, 0], (2, 1)),
        ("regression", MASKS[:, None].float(), (2, 1, 4, 4)),
    ],
)
def test_targets_of_the_kind_and_shape_of_the_task_pass(
    config: Config, name: str, targets: Tensor, outputs: tuple[int, ...]
) -> None:
    refuse(config, TASKS[name], torch.zeros(outputs), train=targets, val=targets[:1])


@pytest.mark.parametrize(
    ("name", "targets", "outputs", "expected"),
    [
        ("classification", LABELS.float(), (2, 2), "train has float32 of shape (2,) for each sample"),
        ("classification", CLASSES.int(), (2, 3), "train has int32 of shape () for each sample"),
        ("classification", MASKS, (2, 3), "train has int64 of shape (4, 4) for each sample"),
        ("multilabel", CLASSES, (2, 3), "takes 0 or 1 for each label (3 of them), and train has int64"),
        ("multilabel", LABELS, (2, 3), "train has int64 of shape (2,) for each sample"),
        ("regression", NUMBERS, (2, 3), "takes a finite number for each output (3 of them), and train has float32"),
        ("classification", with_value(CLASSES, 3), (2, 3), "takes class numbers int64 from 0 to 2, and train has 3 in"),
        ("classification", with_value(MASKS, -100), (2, 3, 4, 4), "values from -100 to -100 in train/4 (1 of 6 samp"),
        ("multilabel", with_value(LABELS.float(), 0.5), (2, 2), "[0.5, 0.5] in train/4 (1 of 6 samples)"),
        ("regression", with_value(NUMBERS, torch.nan), (2, 2), "[nan, nan] in train/4 (1 of 6 samples)"),
        ("regression", with_value(NUMBERS[:, 0].double(), 1e39), (2, 1), "1e+39 in train/4 (1 of 6 samples)"),
        ("regression", with_value(NUMBERS[:, 0], -torch.inf), (2, 1), "-inf in train/4 (1 of 6 samples)"),
    ],
)
def test_other_targets_are_rejected_with_their_first_sample(
    config: Config, name: str, targets: Tensor, outputs: tuple[int, ...], expected: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        refuse(config, TASKS[name], torch.zeros(outputs), train=targets)


def test_a_custom_loss_may_ignore_values_but_not_shapes(config: Config) -> None:
    def ignoring(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, ignore_index=255, reduction="none")

    task = Classification(loss=ignoring, label_smoothing=0.0, class_weights=None)
    refuse(config, task, torch.zeros(2, 3, 4, 4), train=with_value(MASKS, 255))
    with pytest.raises(ConfigError):  # accuracy would compare each with each
        refuse(config, task, torch.zeros(2, 3), train=CLASSES[:, None])


def test_a_custom_task_takes_any_targets(config: Config) -> None:
    refuse(config, Task(), torch.zeros(2, 3), train=with_value(NUMBERS, torch.nan))


@pytest.mark.parametrize(("stage", "split"), [("train", "train"), ("validate", "val"), ("test", "test")])
def test_targets_of_a_dataset_are_checked_in_each_batch(config: Config, stage: str, split: str) -> None:
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


@pytest.mark.parametrize("setting", ["data.balance=1", "data.folds=2", "task.class_weights=[1,1,2]"])
def test_classes_that_a_dataset_lists_must_be_those_of_its_samples(setting: str) -> None:
    no_dataset: Any = []
    empty = torch.zeros(0, 1, 4, 4)
    samples = Samples(no_dataset, torch.arange(COUNT), "data.train", False, empty, CLASSES[:0], CLASSES)
    images = Images(samples, CLASSES[:0], [f"train/{row}" for row in range(COUNT)])
    data: Any = SimpleNamespace(splits=SimpleNamespace(parts={"train": images}))
    module = classifier(nn.Identity())
    module.trainer = SimpleNamespace(state=SimpleNamespace(stage="train"))  # pyright: ignore[reportAttributeAccessIssue]
    batch: Any = SimpleNamespace(targets=CLASSES.flip(0), indices=torch.arange(COUNT).flip(0))
    refuse_targets(plan(["model.width=4", setting]).configs[0], data, module, torch.zeros(2, 3))
    data.look_at_batch(batch)
    batch.targets = (CLASSES.flip(0) + 1) % 3
    with pytest.raises(ConfigError, match=r"data.train.targets are not those of its samples"):
        data.look_at_batch(batch)
    refuse_targets(plan(["model.width=4"]).configs[0], data, module, torch.zeros(2, 3))
    data.look_at_batch(batch)  # nothing is counted


class Moving(Task):
    def moved_targets(self, targets: Tensor, move: Any) -> Tensor:
        return move(targets)


@pytest.mark.parametrize("text", ["crop_padding=1", "flip=true", "vertical_flip=true", "rotation=5"])
def test_what_moves_images_is_refused_unless_the_targets_in_them_can_move(text: str) -> None:
    config, batch = augmented(text)
    with pytest.raises(ConfigError, match=rf"augment\.{text.partition('=')[0]} would have .* add moved_targets to"):
        refuse_augmentation(config, Task(), batch)
    refuse_augmentation(config, Moving(), batch)


@pytest.mark.parametrize("text", ["trivial=true", "rand_augment.num_ops=1"])
def test_operations_that_may_move_images_are_refused_where_targets_lie_in_them(text: str) -> None:
    config, batch = augmented(text)
    with pytest.raises(ConfigError, match=rf"augment\.{text.partition('=')[0]}\S* would have .* switch it off"):
        refuse_augmentation(config, Moving(), batch)


def augmented(text: str) -> tuple[Config, Batch]:
    shard = Shard(0, 0, 0, COUNT, 0, COUNT, COUNT)
    batch = Batch(torch.zeros(COUNT, 1, 4, 4, dtype=torch.uint8), MASKS, torch.arange(COUNT), shard)
    plain = [override for override in SMALL if not override.startswith("augment")]
    return validation.check_config(
        compose.compose_config([*plain, f"augment.{text}", "augment.color_jitter.hue=0.1"])
    ), batch


def test_an_error_of_a_metric_is_one_error_however_many_lines_it_has() -> None:
    error = "task.metrics.mine cannot be updated: expected\n(4,)"
    with pytest.raises(ConfigError) as caught, try_out._config_error(classifier(nn.Identity()), "task", "fails"):
        raise MetricError(error)
    assert list(map(str, caught.value.errors)) == [error]


def test_an_error_of_the_network_names_its_file_and_line() -> None:
    module = classifier(nn.Identity())
    line = r"^model cannot: 2x3, in tests/\S+/test_try_out\.py:\d+ \(\w+\): raise Run"
    with pytest.raises(ConfigError, match=line), try_out._config_error(module, "model", "cannot"):
        raise RuntimeError("2x3")

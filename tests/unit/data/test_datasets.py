"""Samples of torch Datasets: torch's collation of batches, a random state for each sample."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate
from torchvision import tv_tensors

from lockstep.assembly.run_parts import seed_splits
from lockstep.data.images.dataset_samples import Samples
from lockstep.data.loader import ShardDataset
from lockstep.data.sampler import ShardIndices
from lockstep.data.sources.datasets import dataset
from lockstep.data.splits import ImageError, Splits
from lockstep.distributed.partition import Shard
from tests.support.sources import Turned

SETTINGS: dict[str, Any] = {
    **{"val": None, "test": None, "class_names": None, "mean": None, "std": None},
    **{"val_fraction": 0.2, "test_fraction": 0.2, "split_seed": 0},
}


class Listed(Dataset[Any]):
    """The samples of a list."""

    def __init__(self, samples: list[Any], classes: Any = ("a", "b")) -> None:
        self.samples = samples
        if classes:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def image(value: float = 0, dtype: torch.dtype = torch.uint8, side: int = 4) -> Tensor:
    return torch.full((3, side, side), value, dtype=dtype)


def splits_of(train: Any, **changes: Any) -> Splits:
    return dataset(train=train, **SETTINGS | changes)


def samples_of(splits: Splits, part: str = "train") -> Samples:
    pixels = splits.by_name[part].pixels
    assert isinstance(pixels, Samples)
    return pixels


POSITIONS = torch.arange(12)


def test_sample_by_seed_epoch_and_index() -> None:
    samples = samples_of(splits_of(Turned()))
    inputs, targets = samples.make(POSITIONS, 3)
    torch.manual_seed(99)
    for positions in (POSITIONS[7:], POSITIONS[:7].flip(0)):
        again, again_targets = samples.make(positions, 3)
        assert torch.equal(again, inputs[positions])
        assert torch.equal(again_targets, targets[positions])
    assert not torch.equal(samples.make(POSITIONS, 4)[0], inputs)
    other = samples_of(seed_splits(splits_of(Turned()), 1))
    assert not torch.equal(other.make(POSITIONS, 3)[0], inputs)


@pytest.mark.parametrize("part", ["val", "test"])
def test_evaluation_any_epoch(part: str) -> None:
    samples = samples_of(splits_of(Turned()), part)
    positions = torch.arange(5)
    assert torch.equal(samples.make(positions, 0)[0], samples.make(positions, 5)[0])
    assert torch.equal(samples.make(positions, 0)[0], samples[positions])


TARGETS: list[list[Any]] = [
    [0, 1, 1, 0, 1],
    [True, False, True, True, False],
    [0.5, 1.5, 2.5, 0.0, 1.0],
    [np.float32(value) for value in range(5)],
    [np.arange(3) + value for value in range(5)],
    [torch.full((4, 4), value) for value in range(5)],
    [tv_tensors.Mask(torch.full((4, 4), value)) for value in range(5)],
]


@pytest.mark.parametrize("targets", TARGETS, ids=lambda targets: type(targets[0]).__name__)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_batches_as_default_collate(targets: list[Any], dtype: torch.dtype) -> None:
    samples = [
        (tv_tensors.Image(image(number, dtype)), target) for number, target in enumerate(targets)
    ]
    splits = splits_of(Listed(samples))
    part = splits.train
    loader = ShardDataset(part.pixels, part.targets)
    rows = samples_of(splits).rows
    for positions in (torch.arange(len(part)), torch.arange(0)):
        shard = Shard(0, 0, 0, len(part), 0, len(positions), len(part))
        batch = loader.batch(ShardIndices(positions, shard))
        expected = default_collate([samples[row] for row in rows])
        for found, wanted in zip(batch[:2], expected, strict=True):
            assert type(found) is Tensor
            assert found.dtype == wanted.dtype
            assert torch.equal(found, torch.as_tensor(wanted)[: len(positions)])


def test_statistics() -> None:
    pairs = [(image(51 * number), 0) for number in range(5)]
    given = {"val": Listed(pairs), "test": Listed(pairs)}
    statistics = splits_of(Listed(pairs), **given).statistics
    assert statistics is not None
    assert statistics.mean == pytest.approx((0.4,) * 3)
    floats = Listed([(image(number, torch.float32), 0) for number in range(5)])
    assert splits_of(floats).statistics == ((0.0,) * 3, (1.0,) * 3)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield image(), 0


class Endless(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return image(), 0


GOOD = [(image(), 0)] * 5
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "iterable": (
        Stream(),
        {},
        r"data\.train \(Stream\) is not a map-style Dataset: give it __len__ and __getitem__",
    ),
    "no length": (Endless(), {}, r"data\.train \(Endless\) is not a map-style Dataset"),
    "lambda": (
        Listed([*GOOD, lambda: 0]),
        {},
        r"data\.train \(Listed\) cannot be pickled \(.*lambda",
    ),
    "pil": (
        Listed([(Image.fromarray(np.zeros((4, 4, 3), np.uint8)), 0)] * 5),
        {},
        r"sample 0 is a Image and not a tensor: end .*v2\.ToImage\(\)",
    ),
    "dict": (Listed([{"image": 0}] * 5), {}, r"sample 0 is a dict: give a pair \(input, target\)"),
    "vector": (
        Listed([(torch.zeros(7), 0)] * 5),
        {},
        r"float32 of shape \(7,\): give an image \(C, H, W\)",
    ),
    "HWC": (
        Listed([(torch.zeros(8, 8, 3, dtype=torch.uint8), 0)] * 5),
        {},
        r"uint8 of shape \(8, 8, 3\): give an image \(C, H, W\)",
    ),
    "ints": (
        Listed([(image(0, torch.int32), 0)] * 5),
        {},
        r"int32 of shape \(3, 4, 4\): give an image",
    ),
    "text": (
        Listed([(image(), "cat")] * 5),
        {},
        r"the target of sample 0 is a str: give a number or a tensor",
    ),
    "no classes": (
        Listed(GOOD, None),
        {},
        r"data\.class_names is not set, .*\(Listed\) has no `classes`: set it, e",
    ),
    "val": (
        Listed(GOOD),
        {"val": Listed([(image(side=5), 0)])},
        r"data\.val has inputs of uint8 .*5\), data\.train",
    ),
    "val target": (
        Listed(GOOD),
        {"val": Listed([(image(), 0.5)])},
        r"data\.val has targets of float64 of shape \(\)",
    ),
    "mean of floats": (
        Listed([(image(0, torch.float32), 0)] * 5),
        {"mean": [0.0] * 3, "std": [1.0] * 3},
        r"data\.mean=.* normalizes uint8 images, and .* float32 of shape \(3, 4, 4\): remove",
    ),
    "mean of one": (
        Listed(GOOD),
        {"mean": [0.0], "std": [1.0]},
        r"are not for 3 channels: give one number",
    ),
}


@pytest.mark.parametrize(("train", "changes", "line"), REFUSED.values(), ids=REFUSED)
def test_unusable_dataset_refused(train: Any, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        splits_of(train, **changes)


def test_bad_sample_named() -> None:
    larger = Listed([*GOOD, (image(side=6), 0)])
    broken = Turned(broken=7)
    rows = [
        (
            larger,
            Listed(GOOD),
            3,
            5,
            r"sample 5 is uint8 of shape \(3, 6, 6\), that of the first one .*4, 4",
        ),
        (
            broken,
            Turned(),
            1,
            7,
            r"data\.train: sample 7 cannot be made \(OSError: half a file, in .*sources\.py",
        ),
    ]
    for train, others, channels, position, line in rows:
        statistics = {"mean": [0] * channels, "std": [1] * channels}
        samples = samples_of(splits_of(train, val=others, test=others, **statistics))
        with pytest.raises(ImageError, match=line):
            samples.make(torch.tensor([position]), 0)

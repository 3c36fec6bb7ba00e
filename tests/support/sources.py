"""Custom data: digits by a function and as a torch Dataset."""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from lockstep.data import Images, Splits, Statistics
from lockstep.data.sources.builtin import digits
from lockstep.data.sources.datasets import dataset
from lockstep.data.splits import Fold, all_pixels

SETTINGS = {"val_fraction": 0.1, "test_fraction": 0.2, "split_seed": 0}
STATISTICS = Statistics((0.3,), (0.4,))


def unmeasured() -> Splits:
    """Samples of a Dataset, without the statistics to normalize them by."""
    settings: Any = {"val": None, "test": None, "class_names": None, "mean": None, "std": None}
    return replace(dataset(train=Turned(), **SETTINGS, **settings), statistics=None)


def few_digits(*, count: int = 70, is_float: bool = False) -> Splits:
    """The first `count` digits of each split, as a tensor: uint8, or floats of mean 0 or so."""
    splits = digits(**SETTINGS)

    def first(images: Images) -> Images:
        pixels = all_pixels(images.pixels)[:count]
        pixels = pixels.float() / 128 - 1 if is_float else pixels
        return Images(pixels, images.targets[:count], images.names[:count])

    train, val, test = map(first, splits.by_name.values())
    return Splits(train, val, test, splits.class_names, None if is_float else STATISTICS)


def growing(*, listed: str, kept: Mapping[str, str] | None = None) -> Splits:
    """Return as many digits as a file says, even and odd rows, each its own group.

    test and val are the first half.
    """
    digits, count = few_digits().train, int(Path(listed).read_text())
    cut = {
        digits.names[row]: ("test", "val", "train", "train")[4 * row // count]
        for row in range(count)
    }
    cut.update(kept or {})

    def part(split: str) -> Images:
        rows = [row for row in range(count) if cut[digits.names[row]] == split]
        names = [digits.names[row] for row in rows]
        return Images(
            all_pixels(digits.pixels)[rows],
            torch.tensor(rows) % 2,
            names,
            [f"group of {name}" for name in names],
        )

    return Splits(part("train"), part("val"), part("test"), ("even", "odd"), STATISTICS)


def overflowing(*, marked: list[int]) -> Splits:
    """Return few digits.

    The first pixel is white in the training samples `marked`, and black in all others.
    """
    splits = few_digits()
    pixels = all_pixels(splits.train.pixels).clone()
    pixels[marked, 0, 0, 0] = 255
    return replace(splits, train=replace(splits.train, pixels=pixels))


def unlabeled() -> Splits:
    """Few digits; the third training image and a test image have no class."""
    splits = few_digits()
    train, test = splits.train.targets.clone(), splits.test.targets.clone()
    train[2], test[5] = -1, 10
    return replace(
        splits, train=replace(splits.train, targets=train), test=replace(splits.test, targets=test)
    )


class Turned(Dataset[Any]):
    """Digits turned at random, three ways: each draws from another of the global random states."""

    classes = tuple(str(digit) for digit in range(10))

    def __init__(
        self, *, split: str = "train", count: int = 70, is_float: bool = False, broken: int = -1
    ) -> None:
        images = few_digits(count=count).by_name[split]
        self.images, self.targets = all_pixels(images.pixels), images.targets
        self.is_float = is_float
        self.broken = broken
        # of the images that are evaluated, too: every evaluation must see the same ones
        self.transform = v2.Compose(
            [v2.ToImage(), v2.RandomCrop(8, padding=1), v2.RandomHorizontalFlip()]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == self.broken:
            raise OSError("half a file")
        image = Image.fromarray(self.images[index, 0].numpy()).rotate(random.choice((0, 90)))
        turned = self.transform(
            np.clip(np.asarray(image) + np.random.normal(0, 3, (8, 8)), 0, 255).astype(np.uint8)
        )
        return turned.float() / 128 - 1 if self.is_float else turned, int(self.targets[index])


def labeled(kind: str) -> Splits:
    """Return the digits with other targets.

    A target is whether they are even and above 4, or how much ink they take.
    """
    plain = digits(**SETTINGS)

    def part(images: Images) -> Images:
        labels, pixels = images.targets, all_pixels(images.pixels)
        labels_of = torch.stack([labels % 2 == 0, labels > 4], 1)
        return Images(
            pixels,
            labels_of if kind == "labels" else pixels.float().mean((1, 2, 3)) / 255,
            images.names,
        )

    names = ("even", "above 4") if kind == "labels" else ("ink",)
    return Splits(part(plain.train), part(plain.val), part(plain.test), names)


def wrong_labels(flip_seed: int) -> dict[int, int]:
    """3 % of the digits by their number, and how much is added to their label."""
    draws = np.random.default_rng(flip_seed)
    return {
        number: int(draws.integers(1, 10))
        for number in draws.choice(1797, 54, replace=False).tolist()
    }


def mislabeled(*, flip_seed: int, fold: Fold | None = None) -> Splits:
    """All digits, 3 % of them with a wrong label."""
    splits, wrong = digits(**SETTINGS, fold=fold), wrong_labels(flip_seed)

    def flip(images: Images) -> Images:
        moved = torch.tensor([wrong.get(int(name.partition("/")[2]), 0) for name in images.names])
        return replace(images, targets=(images.targets + moved) % 10)

    return replace(splits, **{name: flip(part) for name, part in splits.by_name.items()})

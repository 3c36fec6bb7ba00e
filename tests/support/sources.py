"""Data of the user's own, for tests: digits in another format, and as a torch Dataset."""

import random
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from lockstep.data import ImageFault, Images, Splits, Statistics
from lockstep.data.images.pixels import whole
from lockstep.data.sources.builtin import digits

SETTINGS = {"val_fraction": 0.1, "test_fraction": 0.2, "split_seed": 0}
STATISTICS = Statistics((0.3,), (0.4,))


@dataclass(frozen=True)
class Packed:
    """Digits as compressed bytes, which are unpacked when they are asked for."""

    contents: tuple[bytes, ...]
    is_streamed: bool
    reason: str = "compressed"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.contents), 1, 8, 8

    def __getitem__(self, positions: Tensor) -> Tensor:
        images = torch.empty(len(positions), *self.shape[1:], dtype=torch.uint8)
        for image, position in zip(images, positions.tolist(), strict=True):
            try:
                content = zlib.decompress(self.contents[position])
            except zlib.error as error:
                raise ImageFault([f"packed/{position} cannot be read ({error}): pack it anew."]) from error
            image.copy_(torch.from_numpy(np.frombuffer(content, np.uint8).copy()).view(1, 8, 8))
        return images

    def head(self, count: int) -> "Packed":
        return Packed(self.contents[:count], self.is_streamed, self.reason)


def packed_digits(
    *, count: int = 70, is_streamed: bool = True, has_statistics: bool = True, broken: int | None = None
) -> Splits:
    """The first `count` digits of each split, packed; the one at `broken` of the training images is damaged."""
    splits = few_digits(count=count)
    train, val, test = (
        _packed(images, is_streamed, broken if name == "train" else None) for name, images in splits.parts.items()
    )
    return Splits(train, val, test, splits.class_names, STATISTICS if has_statistics else None)


def few_digits(*, count: int = 70, is_float: bool = False) -> Splits:
    """The first `count` digits of each split, as a tensor: uint8, or floats of mean 0 or so."""
    splits = digits(**SETTINGS)

    def first(images: Images) -> Images:
        pixels = whole(images.pixels)[:count]
        pixels = pixels.float() / 128 - 1 if is_float else pixels
        return Images(pixels, images.targets[:count], images.names[:count])

    train, val, test = map(first, splits.parts.values())
    return Splits(train, val, test, splits.class_names, None if is_float else STATISTICS)


def _packed(images: Images, is_streamed: bool, broken: int | None) -> Images:
    contents = [zlib.compress(image.numpy().tobytes()) for image in whole(images.pixels)]
    if broken is not None:
        contents[broken] = b"damaged"
    return Images(Packed(tuple(contents), is_streamed), images.targets, images.names)


class Turned(Dataset[Any]):
    """Digits turned at random, three ways: each draws from another of the global random states."""

    classes = tuple(str(digit) for digit in range(10))

    def __init__(self, *, split: str = "train", count: int = 70, is_float: bool = False, broken: int = -1) -> None:
        images = few_digits(count=count).parts[split]
        self.images, self.targets = whole(images.pixels), images.targets
        self.is_float = is_float
        self.broken = broken
        # of the images that are evaluated, too: every evaluation must see the same ones
        self.transform = v2.Compose([v2.ToImage(), v2.RandomCrop(8, padding=1), v2.RandomHorizontalFlip()])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == self.broken:
            raise OSError("half a file")
        image = Image.fromarray(self.images[index, 0].numpy()).rotate(random.choice((0, 90)))
        turned = self.transform(np.clip(np.asarray(image) + np.random.normal(0, 3, (8, 8)), 0, 255).astype(np.uint8))
        return turned.float() / 128 - 1 if self.is_float else turned, int(self.targets[index])


def labelled(kind: str) -> Splits:
    """The digits with other targets: whether they are even and above 4, or how much ink they take."""
    plain = digits(**SETTINGS)

    def part(images: Images) -> Images:
        labels, pixels = images.targets, whole(images.pixels)
        labels_of = torch.stack([labels % 2 == 0, labels > 4], 1)
        return Images(pixels, labels_of if kind == "labels" else pixels.float().mean((1, 2, 3)) / 255, images.names)

    names = ("even", "above 4") if kind == "labels" else ("ink",)
    return Splits(part(plain.train), part(plain.val), part(plain.test), names)

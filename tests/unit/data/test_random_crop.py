"""A random resized crop equals torchvision's of the same box.

A sample has the same box wherever its pixels are.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import RandomResizedCrop
from torchvision.transforms.v2 import functional as F

from lockstep.data.images.image_files import ImageFiles
from lockstep.data.images.ragged_table import Rows
from lockstep.data.images.random_crop import RandomCrop
from lockstep.data.sources.builtin import digits
from lockstep.distributed.rng import uniform
from tests.support.image_files import read, write_image

CROP = RandomCrop(scale=(0.08, 1.0), ratio=(0.75, 1.3333), seed=3)
SIZES = [(30, 50), (50, 30), (9, 11), (16, 90)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(40):
        height, width = SIZES[number % len(SIZES)]
        write_image(tmp_path / "images" / "ab"[number % 2] / f"{number}.png", number, height, width)
    return tmp_path / "images"


def drawn(count: int, epoch: int = 0) -> list[list[float]]:
    return uniform(22, torch.arange(count), 3, epoch, "crop").T.tolist()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_crop_as_torchvision(root: Path, interpolation: str) -> None:
    scaled = read(root, interpolation=interpolation, image_size=[12, 8], crop_percent=0.8).train
    crops = CROP(scaled.pixels, torch.arange(len(scaled)), 5)
    assert isinstance(scaled.pixels, Rows)
    for position, (crop, draws) in enumerate(zip(crops, drawn(len(scaled), 5), strict=True)):
        image = scaled.pixels.scaled_image(position)
        box = CROP.box(draws, *image.shape[1:])
        expected = F.resized_crop(
            image, *box, [12, 8], InterpolationMode(interpolation), antialias=True
        )
        assert (crop.int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_boxes_as_torchvision(height: int, width: int) -> None:
    """Means and deviations of 1,000 boxes each; the bounds are five standard errors."""
    image, count = torch.zeros(1, height, width), 1000
    theirs = RandomResizedCrop(8, (0.08, 1.0), (0.75, 1.3333))
    torch.manual_seed(0)
    usual = [list(theirs.make_params([image]).values()) for _ in range(count)]
    ours = [CROP.box(draws, height, width) for draws in drawn(count)]

    def facts(boxes: Any) -> torch.Tensor:
        top, left, high, wide = torch.tensor(boxes).double().unbind(1)
        places = (top / (height - high).clamp(min=1), left / (width - wide).clamp(min=1))
        return torch.stack([high * wide / (height * width), (wide / high).log(), *places])

    found, expected = facts(ours), facts(usual)
    errors = math.sqrt(2 / count) * expected.std(1).clamp(min=1e-9)
    assert ((found.mean(1) - expected.mean(1)).abs() <= 5 * errors).all()
    assert ((found.std(1) - expected.std(1)).abs() <= 5 * errors).all()
    assert (found[0] <= 1).all()


def test_box_never_fits() -> None:
    crop = RandomCrop(scale=(0.9, 1.0), ratio=(0.75, 1.3333), seed=0)
    for height, width in ((4, 400), (400, 4), (1, 1)):
        theirs = RandomResizedCrop(8, (0.9, 1.0), (0.75, 1.3333)).make_params(
            [torch.zeros(1, height, width)]
        )
        assert list(crop.box([0.5] * 22, height, width)) == list(theirs.values())


def test_crop_by_seed_epoch_and_index(root: Path) -> None:
    pixels = read(root).train.pixels
    every = CROP(pixels, torch.arange(12), 0)
    assert torch.equal(CROP(pixels, torch.tensor([7, 2]), 0), every[[7, 2]])
    assert not torch.equal(CROP(pixels, torch.arange(12), 1), every)
    assert not torch.equal(replace(CROP, seed=4)(pixels, torch.arange(12), 0), every)


def test_tensor_crop() -> None:
    images = digits(val_fraction=0.1, test_fraction=0.2, split_seed=0).train.pixels
    assert isinstance(images, torch.Tensor)
    crops = CROP(images, torch.arange(50), 0)
    for image, crop, draws in zip(images, crops, drawn(50), strict=False):
        assert torch.equal(
            crop, F.resized_crop(image, *CROP.box(draws, 8, 8), [8, 8], antialias=True)
        )


# -- in files and processes ------------------------------------------------------------------------


def test_size_other_than_header(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ImageFiles.scaled_sizes
    monkeypatch.setattr(ImageFiles, "scaled_sizes", lambda *given: sizes(*given) + 1)
    with pytest.raises(ValueError, match="has another size than its header"):
        read(root, cache=str(tmp_path / "cache"))
    assert not list(tmp_path.glob("cache/*/*rows*"))

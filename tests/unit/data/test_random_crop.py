"""A random resized crop is torchvision's of the same box, and a sample has the same one wherever its pixels are."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import RandomResizedCrop
from torchvision.transforms.v2 import functional as F

from lockstep.data.images import decoded_splits
from lockstep.data.images.decoded_image import decode
from lockstep.data.images.image_files import ImageFiles
from lockstep.data.images.preprocessing import View
from lockstep.data.images.ragged_table import Rows
from lockstep.data.images.random_crop import RandomCrop
from lockstep.data.loader import ShardDataset, ShardLoader
from lockstep.data.prefetch import worker_settings
from lockstep.data.sources.builtin import digits
from lockstep.data.splits import Images, whole
from lockstep.distributed.rng import uniform
from tests.support.image_files import read, write_image
from tests.support.plans import Plan

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
def test_a_crop_is_that_of_torchvision(root: Path, interpolation: str) -> None:
    scaled = read(root, interpolation=interpolation, image_size=[12, 8], crop_percent=0.8).train
    crops = CROP(scaled.pixels, torch.arange(len(scaled)), 5)
    assert isinstance(scaled.pixels, Rows)
    for position, (crop, draws) in enumerate(zip(crops, drawn(len(scaled), 5), strict=True)):
        image = scaled.pixels.scaled_image(position)
        box = CROP.box(draws, *image.shape[1:])
        expected = F.resized_crop(image, *box, [12, 8], InterpolationMode(interpolation), antialias=True)
        assert (crop.int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_boxes_have_the_areas_shapes_and_places_of_torchvision(height: int, width: int) -> None:
    """Means and deviations of 4,000 boxes each; the bounds are five standard errors."""
    image, count = torch.zeros(1, height, width), 4000
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


def test_a_shape_that_never_fits_is_the_largest_central_part() -> None:
    crop = RandomCrop(scale=(0.9, 1.0), ratio=(0.75, 1.3333), seed=0)
    for height, width in ((4, 400), (400, 4), (1, 1)):
        theirs = RandomResizedCrop(8, (0.9, 1.0), (0.75, 1.3333)).make_params([torch.zeros(1, height, width)])
        assert list(crop.box([0.5] * 22, height, width)) == list(theirs.values())


def test_a_sample_has_its_crop_by_seed_epoch_and_index_alone(root: Path) -> None:
    pixels = read(root).train.pixels
    every = CROP(pixels, torch.arange(12), 0)
    assert torch.equal(CROP(pixels, torch.tensor([7, 2]), 0), every[[7, 2]])
    assert CROP(pixels, torch.arange(0), 0).shape == (0, 3, 8, 8)
    assert not torch.equal(CROP(pixels, torch.arange(12), 1), every)
    assert not torch.equal(replace(CROP, seed=4)(pixels, torch.arange(12), 0), every)


@pytest.mark.parametrize("fit", ["crop", "letterbox"])
def test_crop_in_memory_cached_or_streamed(root: Path, tmp_path: Path, fit: str) -> None:
    cache = {"cache": str(tmp_path / "cache")}
    plain = read(root, fit=fit, image_size=[12, 8]).train.pixels
    for changes in (cache, cache, {"memory": "stream"}):  # built, then found
        pixels = read(root, fit=fit, image_size=[12, 8], **changes).train.pixels
        assert torch.equal(whole(pixels), whole(plain))
        assert torch.equal(CROP(pixels, torch.arange(12), 0), CROP(plain, torch.arange(12), 0))


def test_a_tensor_is_cropped_in_its_own_size() -> None:
    images = digits(val_fraction=0.1, test_fraction=0.2, split_seed=0).train.pixels
    assert isinstance(images, torch.Tensor)
    crops = CROP(images, torch.arange(50), 0)
    for image, crop, draws in zip(images, crops, drawn(50), strict=False):
        assert torch.equal(crop, F.resized_crop(image, *CROP.box(draws, 8, 8), [8, 8], antialias=True))


# -- in files and processes --------------------------------------------------------------------------------------------


def batches_of(images: Images, **settings: Any) -> list[torch.Tensor]:
    data = ShardDataset(images.pixels, images.targets, CROP)
    plan = Plan(num_samples=len(images), micro_batch_size=5)
    return [batch.inputs.clone() for batch in ShardLoader(data, plan.of(0, None), **settings)]


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("place", ["cache", "memory", "stream"])
def test_processes_map_the_file_of_this_one_also_when_it_is_deleted(root: Path, tmp_path: Path, place: str) -> None:
    changes = {"cache": str(tmp_path / "cache")} if place == "cache" else {}
    images = read(root, memory="stream" if place == "stream" else "host", **changes).train
    for path in tmp_path.glob("cache/*/*.rows"):
        path.unlink()
    expected = batches_of(images)
    assert all(map(torch.equal, batches_of(images, **worker_settings(2)), expected))


@pytest.mark.parametrize("size", [[12, 8], 8])
def test_bytes_are_known_before_anything_is_decoded_also_of_turned_images(
    tmp_path: Path, size: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for number, suffix in enumerate((".jpg", ".png", ".webp", ".tif") * 4):
        path = write_image(tmp_path / "images" / "ab"[number % 2] / f"{number}{suffix}", number, 20, 45)
        if number % 3 == 0:
            Image.open(path).save(path, exif=exif)
    found = read(tmp_path / "images", image_size=size, cache=str(tmp_path / "cache")).train.pixels
    assert isinstance(found, Rows)
    assert len({tuple(row) for row in found.table.sizes.tolist()}) == 2  # upright
    monkeypatch.setattr(decoded_splits, "available_bytes", lambda: found.table.nbytes - 1)
    for cache in (None, str(tmp_path / "cache")):
        streamed = read(tmp_path / "images", image_size=size, cache=cache, memory="auto").train.pixels
        assert isinstance(streamed, ImageFiles)


def test_size_other_than_header(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ImageFiles.scaled_sizes
    monkeypatch.setattr(ImageFiles, "scaled_sizes", lambda *given: sizes(*given) + 1)
    with pytest.raises(ValueError, match="has another size than its header"):
        read(root, cache=str(tmp_path / "cache"))
    assert not list(tmp_path.glob("cache/*/*rows*"))


# -- JPEGs that the decoder shrinks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "decoded"), [(30, 60), (40, 120), (100, 240), (130, 480)])
def test_jpeg_shrunk_by_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int, decoded: int) -> None:
    waves = np.linspace(0, 12, 640 * 480 * 3).reshape(480, 640, 3)
    photo = Image.fromarray((127 + 100 * np.sin(waves) * np.cos(waves[::-1])).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.save(tmp_path / "a.jpg", quality=90, exif=exif)
    view = View((side, side), 1.0, "crop", "bilinear", "white")
    image = decode(str(tmp_path / "a.jpg"), 3, view)
    assert (min(image.pixels.shape[1:]), image.size) == (decoded, (640, 480))
    monkeypatch.setattr(JpegImageFile, "draft", lambda *_: None)
    difference = view(image.pixels).int() - view(decode(str(tmp_path / "a.jpg"), 3, view).pixels).int()
    assert difference.abs().double().mean() < 1

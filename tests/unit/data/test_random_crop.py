"""A random resized crop is torchvision's of the same box, and a sample has the same one wherever its pixels are."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import RandomResizedCrop
from torchvision.transforms.v2 import functional as F

from lockstep.data.images import decoded_splits
from lockstep.data.images.image_files import ImageFiles
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
    for other in (
        CROP(pixels, torch.arange(12), 1),
        replace(CROP, seed=4)(pixels, torch.arange(12), 0),
    ):
        assert not torch.equal(other, every)


@pytest.mark.parametrize("fit", ["crop", "letterbox"])
def test_kept_in_a_file_in_memory_or_as_files_the_pixels_are_the_same(root: Path, tmp_path: Path, fit: str) -> None:
    cropped = read(root, fit=fit, image_size=[12, 8])
    places: dict[str, dict[str, Any]] = {
        "memory": {},
        "cache": {"cache": str(tmp_path / "cache")},
        "found": {"cache": str(tmp_path / "cache")},
        "stream": {"memory": "stream"},
    }
    crops = []
    for changes in places.values():
        found = read(root, fit=fit, image_size=[12, 8], **changes)
        assert found.statistics == cropped.statistics
        for name, images in found.parts.items():
            assert isinstance(images.pixels, ImageFiles if "memory" in changes else Rows)
            assert torch.equal(whole(images.pixels), whole(cropped.parts[name].pixels))
        crops.append(CROP(found.train.pixels, torch.arange(12), 0))
    assert all(torch.equal(crop, crops[0]) for crop in crops)


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


def test_a_table_is_sent_without_its_pixels(root: Path, tmp_path: Path) -> None:
    from multiprocessing.reduction import ForkingPickler

    pixels = read(root, image_size=200, cache=str(tmp_path / "cache")).train.pixels
    assert len(ForkingPickler.dumps(pixels)) < 10_000 < pixels.shape[0] * 3 * 200 * 200


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


def test_a_file_whose_header_lies_is_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a" / "broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"broken\.png cannot be read \(not an image\)"):
        read(root, cache=str(tmp_path / "cache"))
    (root / "a" / "broken.png").unlink()
    sizes = ImageFiles.scaled_sizes
    monkeypatch.setattr(ImageFiles, "scaled_sizes", lambda *given: sizes(*given) + 1)
    with pytest.raises(ValueError, match="has another size than its header"):
        read(root, cache=str(tmp_path / "cache"))
    assert not list(tmp_path.glob("cache/*/*rows*"))


# -- JPEGs that the decoder shrinks ------------------------------------------------------------------------------------


def test_a_jpeg_is_decoded_no_smaller_than_twice_its_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waves = np.linspace(0, 12, 640 * 480 * 3).reshape(480, 640, 3)
    photo = Image.fromarray((127 + 100 * np.sin(waves) * np.cos(waves[::-1])).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        for number in range(4):
            photo.save(tmp_path / part / f"{number}.jpg", quality=90, exif=exif if number % 2 else Image.Exif())
    for side, expected in ((30, 60), (40, 120), (100, 240), (130, 480)):
        files = read(tmp_path, image_size=side, memory="stream").train.pixels
        assert isinstance(files, ImageFiles)
        image = files.decode(0)
        assert min(image.pixels.shape[1:]) == expected
        assert sorted(image.size) == [480, 640]
        assert sorted(files.scaled_image(0).shape[1:]) == [side, side * 640 // 480]
        with monkeypatch.context() as undrafted:
            undrafted.setattr(Image.Image, "draft", lambda *_: None)
            undrafted.setattr("PIL.JpegImagePlugin.JpegImageFile.draft", lambda *_: None)
            whole_decode = files[torch.arange(len(files))]
        difference = (files[torch.arange(len(files))].int() - whole_decode.int()).abs().double()
        assert difference.mean() < 1

"""Crop, flip, fills and their order; TrivialAugment and mixing have files of their own."""

import hashlib
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lockstep.data.sampler import positions
from lockstep.data.transforms.augment import Augment
from lockstep.data.transforms.boxes import box_mask, erasing_boxes
from lockstep.distributed.batch import Batch
from lockstep.distributed.partition import Shard, interval
from lockstep.distributed.rng import generator

NO_JITTER = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
OFF = Augment(
    crop_padding=0,
    crop_border="zeros",
    flip=False,
    vertical_flip=False,
    rotation=0.0,
    cutout=0,
    cutout_inside=False,
    erasing=0.0,
    trivial=False,
    rand_augment={"num_ops": 0, "magnitude": 9},
    color_jitter=NO_JITTER,
    mixup=0.0,
    cutmix=0.0,
    fill=(7, 130, 255, 40),
    seed=5,
)
FILLED = replace(OFF, crop_padding=3, flip=True, cutout=4, fill=OFF.fill[:3])
ALL_PARTS = replace(FILLED, flip="alternating", erasing=0.5, trivial=True, mixup=0.5, cutmix=1.0)
BY_INDEX = {
    "vertical_flip": replace(OFF, vertical_flip=True),
    "rotation": replace(OFF, rotation=40.0),
    "rand_augment": replace(OFF, rand_augment={"num_ops": 2, "magnitude": 9}),
    "cutout_inside": replace(OFF, cutout=4, cutout_inside=True, fill=OFF.fill[:3]),
    **{name: replace(OFF, color_jitter=NO_JITTER | {name: 0.4}) for name in NO_JITTER},
}
PHOTOGRAPHS = replace(
    ALL_PARTS,
    trivial=False,
    crop_border="reflect",
    vertical_flip=True,
    rotation=40.0,
    cutout_inside=True,
    rand_augment={"num_ops": 2, "magnitude": 9},
    color_jitter=dict.fromkeys(NO_JITTER, 0.4),
)


def whole(size: int, *, epoch: int = 0, step: int = 0) -> Shard:
    return Shard(epoch, step, step, size, 0, size, size)


def random_images(*shape: int) -> Tensor:
    return torch.randint(
        0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def batch_of(augment: Augment, images: Tensor, shard: Shard) -> Batch:
    """Return the shard as the loader does.

    Labels and data set indices tell the positions in `images`.
    """
    read = positions(shard, with_partner=augment.needs_partner)
    return Batch(images[read], 10 * read, 100 + read, shard)


def augmented(augment: Augment, images: Tensor, *, epoch: int = 0) -> Tensor:
    shard = whole(len(images), epoch=epoch)
    return augment(batch_of(augment, images, shard)).inputs


def one_by_one(augment: Augment, images: Tensor, shard: Shard) -> Tensor:
    """Slice, flip and paint one sample at a time: the slow way."""
    changed = []
    height, width = images.shape[-2:]
    draws = augment.draw(shard, 100 + torch.arange(len(images)), height, width)
    fill = torch.tensor(augment.fill, dtype=torch.uint8).view(-1, 1, 1)
    mode = "reflect" if augment.crop_border == "reflect" else "constant"
    for number, image in enumerate(images):
        result = image
        top, left, is_inverted, is_mirrored = draws.window[:, number].tolist()
        if augment.crop_padding:
            padded = F.pad(image, (augment.crop_padding,) * 4, mode=mode)
            result = padded[:, top : top + height, left : left + width]
        if is_mirrored:
            result = result.flip(2)
        if is_inverted:
            result = result.flip(1)
        result = result.clone()
        for boxes in draws.filled:
            y0, y1, x0, x1 = (max(end, 0) for end in boxes[:, number].tolist())
            result[:, y0:y1, x0:x1] = fill
        changed.append(result)
    return torch.stack(changed)


@pytest.mark.parametrize(
    "changes",
    [
        {"crop_padding": 0, "flip": False, "cutout": 5, "erasing": 0.7},
        {"crop_padding": 3, "flip": True, "cutout": 4, "erasing": 0.0},
        {"crop_padding": 3, "flip": True, "cutout": 40, "erasing": 0.7},
        {
            "crop_padding": 1,
            "crop_border": "zeros",
            "vertical_flip": True,
            "cutout": 1,
            "cutout_inside": True,
        },
        {
            "crop_padding": 8,
            "crop_border": "reflect",
            "vertical_flip": True,
            "cutout": 9,
            "cutout_inside": True,
        },
    ],
    ids=str,
)
def test_batch_one_by_one(changes: dict[str, Any]) -> None:
    augment = replace(FILLED, **changes)
    images = random_images(40, 3, 9, 12)
    assert torch.equal(augmented(augment, images), one_by_one(augment, images, whole(40)))


@pytest.mark.parametrize(
    ("augment", "digest"),
    [(FILLED, "0374deafb9bd7f2c"), (replace(ALL_PARTS, mixup=0.0, cutmix=0.0), "811cc97c9cdcf644")],
)
def test_reference_digest(augment: Augment, digest: str) -> None:
    """Made before the draws by index came (2026-11-26); a change belongs into the changelog."""
    found = augmented(augment, random_images(64, 3, 16, 19), epoch=4)
    assert hashlib.blake2b(found.numpy().tobytes(), digest_size=8).hexdigest() == digest


# -- for any number of workers ---------------------------------------------------------------------


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    plain=st.sampled_from([ALL_PARTS, PHOTOGRAPHS, *BY_INDEX.values()]),
    size=st.integers(1, 40),
    worker_weights=st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any),
    step=st.integers(0, 9),
    channels=st.sampled_from([1, 2, 3, 4]),
    mixed=st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.0, 1.0), (0.5, 1.0)]),
)
def test_any_shards(
    plain: Augment,
    size: int,
    worker_weights: list[int],
    step: int,
    channels: int,
    mixed: tuple[float, float],
) -> None:
    augment = replace(plain, fill=OFF.fill[:channels], mixup=mixed[0], cutmix=mixed[1])
    images = random_images(size, channels, 8, 9)
    expected = augment(batch_of(augment, images, Shard(2, step, step, size, 0, size, size)))
    for rank in range(len(worker_weights)):
        low, high = interval(size, worker_weights, rank)
        shard = Shard(2, step, step, size, low, high, size)
        found = augment(batch_of(augment, images, shard))
        assert found.shard == shard
        for name in ("inputs", "targets", "indices"):
            assert torch.equal(getattr(found, name), getattr(expected, name)[low:high]), name
        assert (found.mix is None) == (expected.mix is None) == (mixed == (0, 0))
        if found.mix and expected.mix:
            assert torch.equal(found.mix.targets, expected.mix.targets[low:high])
            assert torch.equal(found.mix.weights, expected.mix.weights[low:high])


def test_large_images_in_blocks() -> None:
    images = random_images(7, 3, 224, 160)
    shared = replace(PHOTOGRAPHS, mixup=0.0, cutmix=0.0)
    together = augmented(shared, images)
    for number in range(7):
        alone = batch_of(shared, images, Shard(0, 0, 0, 7, number, number + 1, 7))
        assert torch.equal(shared(alone).inputs[0], together[number])


# -- the draws -------------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", [ALL_PARTS, PHOTOGRAPHS])
def test_draws_per_seed_epoch_step(augment: Augment) -> None:
    images = random_images(64, 3, 16, 16)
    shards = [whole(64), whole(64, epoch=1), whole(64, step=1)]
    found = [augment(batch_of(augment, images, shard)).inputs for shard in shards]
    found.append(augmented(replace(augment, seed=6), images))
    assert torch.stack(found).unique(dim=0).shape[0] == 4
    assert torch.equal(augmented(augment, images), found[0])


@pytest.mark.parametrize("name", BY_INDEX)
def test_draws_by_index(name: str) -> None:
    augment, images = BY_INDEX[name], random_images(60, 3, 16, 16)
    first = augmented(augment, images)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    later = Batch(images[order], order, 100 + order, whole(60, step=7))
    assert torch.equal(augment(later).inputs, first[order])
    assert not torch.equal(augmented(augment, images, epoch=1), first)
    assert not torch.equal(augmented(replace(augment, seed=6), images), first)


def test_draws_even() -> None:
    augment = replace(PHOTOGRAPHS, rotation=90.0, mixup=0.0, cutmix=0.0, erasing=0.0)
    draws = augment.draw(whole(20_000), torch.arange(20_000), 20, 12)
    assert draws.rotation is not None
    cos, sin = draws.rotation[0, 0], draws.rotation[1, 0]
    counts = torch.histc(torch.atan2(sin, cos).rad2deg(), 8, -90, 90)
    assert counts.tolist() == pytest.approx([2500] * 8, rel=0.12)  # six standard deviations
    assert draws.window[2].double().mean().item() == pytest.approx(0.5, abs=0.02)
    top, bottom, left, right = draws.filled[0]
    assert top.bincount().tolist() == pytest.approx([20_000 / 17] * 17, rel=0.18)
    assert left.bincount().tolist() == pytest.approx([20_000 / 9] * 9, rel=0.13)
    assert (bottom.max(), right.max()) == (20, 12)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
def test_moved_targets(dtype: torch.dtype) -> None:
    moving = replace(
        FILLED,
        cutout=0,
        crop_border="reflect",
        vertical_flip=True,
        rotation=40.0,
        moved_targets=lambda targets, move: move(targets.unsqueeze(1)).squeeze(1),
    )
    images = random_images(30, 1, 16, 19)
    found = moving(Batch(images, images[:, 0].to(dtype), torch.arange(30), whole(30)))
    assert torch.equal(found.targets, found.inputs[:, 0].to(dtype))
    assert not torch.equal(found.inputs, images)


# -- alternating flip ------------------------------------------------------------------------------


def test_alternating_flip_by_epoch() -> None:
    images = torch.tensor([0, 1], dtype=torch.uint8).expand(5000, 1, 1, 2).contiguous()
    alternating = replace(OFF, flip="alternating")
    first, *others = (augmented(alternating, images, epoch=epoch) for epoch in range(4))
    assert first[:, 0, 0, 0].double().mean().item() == pytest.approx(0.5, abs=0.03)
    for found, expected in zip(others, (1 - first, first, 1 - first), strict=True):
        assert torch.equal(found, expected)


# -- random erasing --------------------------------------------------------------------------------


def test_erasing_probability() -> None:
    top, bottom, _, _ = erasing_boxes(generator(1), 20_000, 0.25, 32, 32)
    # five standard deviations
    assert (bottom > top).double().mean().item() == pytest.approx(0.25, abs=0.015)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (224, 100), (8, 8)])
def test_erasing_areas_and_shapes(height: int, width: int) -> None:
    top, bottom, left, right = erasing_boxes(generator(2), 20_000, 1.0, height, width)
    h, w = (bottom - top).double(), (right - left).double()
    assert ((top >= 0) & (bottom <= height) & (left >= 0) & (right <= width)).all()
    # sides are rounded to whole pixels: bounds hold for half a pixel more or less
    assert ((h + 0.5) * (w + 0.5) >= 0.02 * height * width).all()
    assert ((h - 0.5) * (w - 0.5) <= 0.33 * height * width).all()
    assert ((h + 0.5) / (w - 0.5) >= 0.3).all()
    assert ((h - 0.5) / (w + 0.5) <= 3.3).all()
    if (height, width) == (32, 32):
        # uniform area, but large ones are drawn again when too narrow to fit; mean log aspect is 0
        # as the paper's
        assert (h * w / 32**2).mean().item() == pytest.approx((0.02 + 0.33) / 2, abs=0.01)
        assert (h / w).log().mean().item() == pytest.approx(math.log(0.3 * 3.3) / 2, abs=0.02)
        # every pixel can be erased
        assert box_mask(torch.stack([top, bottom, left, right]), 32, 32).any(0).all()

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
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def batch_of(augment: Augment, images: Tensor, shard: Shard) -> Batch:
    """The share as the loader gives it: labels and data set indices tell the positions in `images`."""
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
        *(
            {"crop_padding": padding, "flip": flip, "cutout": cutout, "erasing": erasing}
            for padding in (0, 3)
            for flip in (False, True)
            for cutout in (0, 1, 4, 5, 40)
            for erasing in (0.0, 0.7)
        ),
        *(
            {
                "crop_padding": padding,
                "crop_border": border,
                "vertical_flip": True,
                "cutout": cutout,
                "cutout_inside": True,
            }
            for padding in (0, 1, 8)
            for border in ("zeros", "reflect")
            for cutout in (1, 4, 9)
        ),
    ],
    ids=str,
)
def test_a_batch_is_augmented_like_its_images_one_by_one(changes: dict[str, Any]) -> None:
    augment = replace(FILLED, **changes)
    images = random_images(40, 3, 9, 12)
    assert torch.equal(augmented(augment, images), one_by_one(augment, images, whole(40)))


@pytest.mark.parametrize(
    ("augment", "digest"),
    [(FILLED, "0374deafb9bd7f2c"), (replace(ALL_PARTS, mixup=0.0, cutmix=0.0), "811cc97c9cdcf644")],
)
def test_a_seed_gives_the_bits_it_always_gave(augment: Augment, digest: str) -> None:
    """Made before the draws by index came (2026-11-26); a change belongs into the changelog."""
    found = augmented(augment, random_images(64, 3, 16, 19), epoch=4)
    assert hashlib.blake2b(found.numpy().tobytes(), digest_size=8).hexdigest() == digest


# -- for any number of workers -----------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    plain=st.sampled_from([ALL_PARTS, PHOTOGRAPHS, *BY_INDEX.values()]),
    size=st.integers(1, 40),
    loads=st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any),
    step=st.integers(0, 9),
    channels=st.sampled_from([1, 2, 3, 4]),
    mixed=st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.0, 1.0), (0.5, 1.0)]),
)
def test_any_cut_of_a_batch_is_augmented_as_the_cut_of_the_whole(
    plain: Augment, size: int, loads: list[int], step: int, channels: int, mixed: tuple[float, float]
) -> None:
    augment = replace(plain, fill=OFF.fill[:channels], mixup=mixed[0], cutmix=mixed[1])
    images = random_images(size, channels, 8, 9)
    expected = augment(batch_of(augment, images, Shard(2, step, step, size, 0, size, size)))
    for rank in range(len(loads)):
        low, high = interval(size, loads, rank)
        shard = Shard(2, step, step, size, low, high, size)
        found = augment(batch_of(augment, images, shard))
        assert found.shard == shard
        for name in ("inputs", "targets", "indices"):
            assert torch.equal(getattr(found, name), getattr(expected, name)[low:high]), name
        assert (found.mix is None) == (expected.mix is None) == (mixed == (0, 0))
        if found.mix and expected.mix:
            assert torch.equal(found.mix.targets, expected.mix.targets[low:high])
            assert torch.equal(found.mix.weights, expected.mix.weights[low:high])


def test_switched_off_it_returns_the_very_input() -> None:
    batch = batch_of(OFF, random_images(4, 1, 8, 8), whole(4))
    assert OFF(batch) is batch


@pytest.mark.parametrize("augment", [FILLED, ALL_PARTS, replace(OFF, trivial=True), *BY_INDEX.values()])
def test_the_input_is_never_changed(augment: Augment) -> None:
    images = random_images(60, 3, 8, 8)
    batch = batch_of(augment, images, whole(60))
    before = batch.inputs.clone()
    augment(batch)
    assert torch.equal(batch.inputs, before)


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 8, 8), (3, 224, 160), (4, 331, 257)])
def test_parts_of_a_batch_that_a_cpu_changes_together_are_its_images(channels: int, height: int, width: int) -> None:
    images = random_images(11, channels, height, width)
    shared = replace(PHOTOGRAPHS, mixup=0.0, cutmix=0.0, fill=OFF.fill[:channels])
    together = augmented(shared, images)
    for number in range(11):
        alone = batch_of(shared, images, Shard(0, 0, 0, 11, number, number + 1, 11))
        assert torch.equal(shared(alone).inputs[0], together[number])


# -- the draws ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", [ALL_PARTS, PHOTOGRAPHS])
def test_every_seed_epoch_and_step_has_its_own_draws(augment: Augment) -> None:
    images = random_images(64, 3, 16, 16)
    shards = [whole(64), whole(64, epoch=1), whole(64, step=1)]
    found = [augment(batch_of(augment, images, shard)).inputs for shard in shards]
    found.append(augmented(replace(augment, seed=6), images))
    assert torch.stack(found).unique(dim=0).shape[0] == 4
    assert torch.equal(augmented(augment, images), found[0])


def test_switching_a_part_on_leaves_the_draws_of_the_others_as_they_were() -> None:
    alone = FILLED.draw(whole(50), torch.arange(50), 16, 16)
    together = ALL_PARTS.draw(whole(50), torch.arange(51) % 50, 16, 16)
    # the partner of the last sample is the first, whose draws come once more
    assert torch.equal(together.window[:2], torch.cat([alone.window[:2], alone.window[:2, :1]], 1))
    assert torch.equal(together.filled[0][:, :50], alone.filled[0])


@pytest.mark.parametrize("name", BY_INDEX)
def test_what_is_drawn_by_index_is_the_same_in_any_batch_and_another_in_each_epoch(name: str) -> None:
    augment, images = BY_INDEX[name], random_images(60, 3, 16, 16)
    first = augmented(augment, images)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    later = Batch(images[order], order, 100 + order, whole(60, step=7))
    assert torch.equal(augment(later).inputs, first[order])
    assert not torch.equal(augmented(augment, images, epoch=1), first)
    assert not torch.equal(augmented(replace(augment, seed=6), images), first)


def test_turns_flips_and_squares_are_drawn_evenly() -> None:
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
def test_targets_in_the_image_move_with_it(dtype: torch.dtype) -> None:
    moving = replace(FILLED, cutout=0, crop_border="reflect", vertical_flip=True, rotation=40.0)
    moving = replace(moving, moved_targets=lambda targets, move: move(targets.unsqueeze(1)).squeeze(1))
    images = random_images(30, 1, 16, 19)
    found = moving(Batch(images, images[:, 0].to(dtype), torch.arange(30), whole(30)))
    assert torch.equal(found.targets, found.inputs[:, 0].to(dtype))
    assert not torch.equal(found.inputs, images)


@pytest.mark.parametrize("part", [replace(each, mixup=0.0, cutmix=0.0) for each in (ALL_PARTS, FILLED, PHOTOGRAPHS)])
def test_the_partner_of_the_last_sample_has_the_draws_of_its_own_position(part: Augment) -> None:
    images = random_images(6, 3, 16, 16)
    mixed, shard = replace(part, cutmix=1.0), Shard(0, 0, 0, 6, 3, 5, 6)
    pixels = batch_of(mixed, images, shard)
    draws = mixed.draw(shard, pixels.indices, 16, 16)._replace(mixed=None)
    assert torch.equal(mixed.apply(pixels, draws).inputs, augmented(part, images)[3:6])


# -- alternating flip --------------------------------------------------------------------------------------------------


def mirrored(augment: Augment, indices: Tensor, epoch: int) -> Tensor:
    """Which of the samples of a data set are mirrored in an epoch."""
    images = torch.tensor([0, 1], dtype=torch.uint8).expand(len(indices), 1, 1, 2).contiguous()
    return augment(Batch(images, indices, indices, whole(len(indices), epoch=epoch))).inputs[:, 0, 0, 0] == 1


ALTERNATING = replace(OFF, flip="alternating")


def test_an_alternating_flip_shows_each_sample_once_each_way_in_two_epochs() -> None:
    seen = [mirrored(ALTERNATING, torch.arange(5000), epoch) for epoch in range(4)]
    for number, expected in enumerate((seen[0], ~seen[0], seen[0], ~seen[0])):
        assert torch.equal(seen[number], expected)


@pytest.mark.parametrize("start", [0, 50_000, 14_000_000])
def test_bits_of_an_alternating_flip_are_fair_and_independent(start: int) -> None:
    """Of neighbours up to 64 apart, and of seeds; a fair coin is off by 0.02 in 10,000 throws once in 16,000 times."""
    indices = torch.arange(start, start + 10_000)
    bits = mirrored(ALTERNATING, indices, 0).double()
    assert abs(bits.mean().item() - 0.5) < 0.02
    for lag in (1, 2, 3, 4, 8, 16, 32, 64):
        assert abs((bits[lag:] == bits[:-lag]).double().mean().item() - 0.5) < 0.02, lag
    for seed in range(10):
        other = mirrored(replace(ALTERNATING, seed=1000 + seed), indices, 0)
        assert abs((bits == other).double().mean().item() - 0.5) < 0.02, seed


# -- random erasing ----------------------------------------------------------------------------------------------------


def test_erasing_changes_a_sample_with_its_probability() -> None:
    top, bottom, _, _ = erasing_boxes(generator(1), 20_000, 0.25, 32, 32)
    assert (bottom > top).double().mean().item() == pytest.approx(0.25, abs=0.015)  # five standard deviations


@pytest.mark.parametrize(("height", "width"), [(32, 32), (224, 100), (8, 8)])
def test_erased_rectangles_have_the_areas_and_shapes_of_the_paper(height: int, width: int) -> None:
    top, bottom, left, right = erasing_boxes(generator(2), 20_000, 1.0, height, width)
    h, w = (bottom - top).double(), (right - left).double()
    assert ((top >= 0) & (bottom <= height) & (left >= 0) & (right <= width)).all()
    # sides are rounded to whole pixels: bounds hold for half a pixel more or less
    assert ((h + 0.5) * (w + 0.5) >= 0.02 * height * width).all()
    assert ((h - 0.5) * (w - 0.5) <= 0.33 * height * width).all()
    assert ((h + 0.5) / (w - 0.5) >= 0.3).all()
    assert ((h - 0.5) / (w + 0.5) <= 3.3).all()
    if (height, width) == (32, 32):
        # uniform area, but large ones are drawn again when too narrow to fit; mean log aspect is 0 as the paper's
        assert (h * w / 32**2).mean().item() == pytest.approx((0.02 + 0.33) / 2, abs=0.01)
        assert (h / w).log().mean().item() == pytest.approx(math.log(0.3 * 3.3) / 2, abs=0.02)
        middle = [((low + high) / 2).double().mean().item() for low, high in ((top, bottom), (left, right))]
        assert middle == pytest.approx([16, 16], abs=0.2)
        # every pixel can be erased
        assert box_mask(torch.stack([top, bottom, left, right]), 32, 32).any(0).all()


def test_where_nothing_fits_nothing_is_erased() -> None:
    """In a line of pixels no box is lower than the image."""
    boxes = erasing_boxes(generator(3), 100, 1.0, 1, 50)
    assert not box_mask(boxes, 1, 50).any()

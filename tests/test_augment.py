from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lockstep.data.augment import Augment
from lockstep.parallel.partition import Share, interval

ALL_PARTS = Augment(crop_padding=3, flip=True, cutout=4, fill=(7, 130, 255), seed=5)


def whole(size: int, *, epoch: int = 0, micro_step: int = 0) -> Share:
    return Share(epoch, micro_step, size, 0, size, size)


def random_images(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def one_by_one(augment: Augment, images: Tensor, share: Share) -> Tensor:
    """Slice, flip and paint one sample at a time: the slow way."""
    changed = []
    height, width = images.shape[-2:]
    draws = augment.draw(share, height, width).T.tolist()
    for image, (top, left, mirror, y, x) in zip(images, draws, strict=True):
        padded = F.pad(image, (augment.crop_padding,) * 4)
        result = padded[:, top : top + height, left : left + width].clone()
        if augment.flip and mirror:
            result = result.flip(2)
        if augment.cutout:
            y, x = y - augment.cutout // 2, x - augment.cutout // 2
            square = result[:, max(y, 0) : max(y + augment.cutout, 0), max(x, 0) : max(x + augment.cutout, 0)]
            square[:] = torch.tensor(augment.fill, dtype=torch.uint8).view(-1, 1, 1)
        changed.append(result)
    return torch.stack(changed)


@pytest.mark.parametrize("crop_padding", [0, 3])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("cutout", [0, 1, 4, 5, 40])
def test_a_batch_is_augmented_like_its_images_one_by_one(crop_padding: int, flip: bool, cutout: int) -> None:
    augment = Augment(crop_padding=crop_padding, flip=flip, cutout=cutout, fill=(7, 130, 255), seed=5)
    images = random_images(20, 3, 9, 12)
    assert torch.equal(augment(images, whole(20)), one_by_one(augment, images, whole(20)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 40),
    loads=st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any),
    micro_step=st.integers(0, 9),
)
def test_any_cut_of_a_batch_is_augmented_as_the_cut_of_the_whole(size: int, loads: list[int], micro_step: int) -> None:
    images = random_images(size, 3, 8, 8)
    parts = []
    for rank in range(len(loads)):
        low, high = interval(size, loads, rank)
        parts.append(ALL_PARTS(images[low:high], Share(2, micro_step, size, low, high, size)))
    assert torch.equal(torch.cat(parts), ALL_PARTS(images, whole(size, epoch=2, micro_step=micro_step)))


def test_an_empty_share_gives_an_empty_batch() -> None:
    empty = ALL_PARTS(random_images(0, 3, 8, 8), Share(0, 0, 5, 2, 2, 5))
    assert (empty.shape, empty.dtype) == ((0, 3, 8, 8), torch.uint8)


def test_switched_off_it_returns_the_very_input() -> None:
    images = random_images(4, 1, 8, 8)
    assert Augment(crop_padding=0, flip=False, cutout=0, fill=(), seed=0)(images, whole(4)) is images


@pytest.mark.parametrize("augment", [ALL_PARTS, replace(ALL_PARTS, crop_padding=0, flip=False)])
def test_the_input_is_never_changed(augment: Augment) -> None:
    images = random_images(30, 3, 8, 8)
    before = images.clone()
    augment(images, whole(30))
    assert torch.equal(images, before)


def test_every_seed_epoch_and_micro_step_has_its_own_draws() -> None:
    other_seed = replace(ALL_PARTS, seed=6)
    draws = [
        ALL_PARTS.draw(whole(64), 32, 32),
        ALL_PARTS.draw(whole(64, epoch=1), 32, 32),
        ALL_PARTS.draw(whole(64, micro_step=1), 32, 32),
        other_seed.draw(whole(64), 32, 32),
    ]
    assert not any(torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])
    assert torch.equal(draws[0], ALL_PARTS.draw(whole(64), 32, 32))


def test_draws_reach_every_offset_mirror_and_centre() -> None:
    draws = ALL_PARTS.draw(whole(2000), 8, 12)
    assert [row.unique().tolist() for row in draws] == [list(range(end)) for end in (7, 7, 2, 8, 12)]


def test_switching_cutout_on_leaves_crops_and_flips_as_they_were() -> None:
    plain = replace(ALL_PARTS, cutout=0)
    images = random_images(50, 3, 16, 16)
    untouched = (ALL_PARTS(images, whole(50)) == plain(images, whole(50))).all(1).sum((1, 2))
    assert (untouched >= 16 * 16 - 4 * 4).all()


def test_a_fill_of_the_wrong_length_is_named() -> None:
    with pytest.raises(ValueError, match=r"fill=\(7, 130, 255\).*1 channels"):
        ALL_PARTS(random_images(2, 1, 8, 8), whole(2))

"""MixUp and CutMix, sample by sample, and what their labels weigh."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.data.transforms import mixing
from lockstep.data.transforms.mixing import ONE, MixDraws
from lockstep.distributed.batch import Batch
from lockstep.distributed.partition import Shard


def whole(size: int) -> Shard:
    return Shard(0, 0, 0, size, 0, size, size)


def batch(size: int, *, height: int = 16, width: int = 12, channels: int = 3) -> Batch:
    """As the loader gives it: the first sample once more behind the last."""
    order = torch.arange(size + 1) % size
    shape = (size, channels, height, width)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Batch(pixels[order], 10 * order, order, whole(size))


def mixed(size: int, *, mixup: float, cutmix: float, seed: int = 3) -> tuple[Batch, MixDraws, Batch]:
    before = batch(size)
    draws = mixing.draw(seed, before.shard, 16, 12, mixup=mixup, cutmix=cutmix)
    return before, draws, mixing.apply(before, draws)


def weights_of(found: Batch) -> Tensor:
    assert found.mix is not None
    return found.mix.weights


def test_each_sample_is_mixed_with_the_one_that_follows_it_and_the_last_with_the_first() -> None:
    _, _, found = mixed(7, mixup=0.5, cutmix=0.0)
    assert found.mix is not None
    assert found.targets.tolist() == [0, 10, 20, 30, 40, 50, 60]
    assert found.indices.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert found.mix.targets.tolist() == [10, 20, 30, 40, 50, 60, 0]
    assert found.inputs.shape == (7, 3, 16, 12)


def test_mixup_is_exact_for_every_pair_of_grey_levels() -> None:
    """65,536 pairs; products and sums stay below 2**24, so float32 holds them."""
    own, partner = torch.arange(256).repeat_interleave(256), torch.arange(256).repeat(256)
    pixels = torch.stack([own, partner]).to(torch.uint8).view(2, 1, 256, 256)
    for part in (0, 1, 777, ONE // 2, ONE - 3, ONE):
        draws = MixDraws(torch.zeros(1), torch.tensor([float(part)]), None)
        found = mixing.apply(Batch(pixels, torch.zeros(2), torch.zeros(2), whole(1)), draws).inputs
        assert torch.equal(found.flatten().long(), (own * part + partner * (ONE - part) + ONE // 2) // ONE)


def test_cutmix_pastes_a_rectangle_and_weighs_labels_by_its_true_area() -> None:
    before, draws, found = mixed(500, mixup=0.0, cutmix=1.0)
    assert draws.boxes is not None
    for number, (top, bottom, left, right) in enumerate(draws.boxes.T.tolist()):
        expected = before.inputs[number].clone()
        expected[:, top:bottom, left:right] = before.inputs[number + 1, :, top:bottom, left:right]
        assert torch.equal(found.inputs[number], expected)
        assert weights_of(found)[number].item() == pytest.approx(1 - (bottom - top) * (right - left) / (16 * 12))
    # some hang over an edge and are cut there, some are whole
    assert (draws.boxes[0] == 0).any()
    assert (draws.boxes[1] == 16).any()
    assert ((draws.boxes[0] > 0) & (draws.boxes[1] < 16) & (draws.boxes[1] > draws.boxes[0])).any()


def test_with_both_each_sample_takes_one_of_them_half_of_the_time() -> None:
    before, draws, found = mixed(4000, mixup=1.0, cutmix=1.0)
    assert draws.boxes is not None
    assert draws.parts is not None
    is_cut = draws.parts == ONE
    assert is_cut.double().mean().item() == pytest.approx(0.5, abs=0.04)  # five standard deviations
    assert (draws.boxes[1] == draws.boxes[0])[~is_cut].all()
    own = (found.inputs == before.inputs[:-1]).flatten(1)
    partner = (found.inputs == before.inputs[1:]).flatten(1)
    assert (own | partner).all(1)[is_cut].all()
    assert not (own | partner).all(1)[~is_cut & (weights_of(found) > 0.1) & (weights_of(found) < 0.9)].any()


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_weights_are_beta_distributed(alpha: float) -> None:
    weights = weights_of(mixed(20_000, mixup=alpha, cutmix=0.0)[2]).double()
    variance = 1 / (4 * (2 * alpha + 1))
    assert weights.mean().item() == pytest.approx(0.5, abs=0.02)
    assert weights.var().item() == pytest.approx(variance, rel=0.05)


def test_cutmix_boxes_have_the_sides_lambda_asks_for_where_no_edge_cuts_them() -> None:
    """1 - lambda is the area: with alpha 1 it is uniform, so the square of a side's part of the image is, too."""
    draws = mixing.draw(1, whole(40_000), 1000, 1000, mixup=0.0, cutmix=1.0)
    assert draws.boxes is not None
    top, bottom, left, right = draws.boxes.numpy()
    free = (top > 0) & (bottom < 1000) & (left > 0) & (right < 1000)
    assert np.array_equal((bottom - top)[free], (right - left)[free])
    small = ((bottom - top)[free] / 1000) ** 2 < 0.01
    # a hundredth of all boxes have less than a hundredth of the area; nearly none of these meets an edge
    assert small.sum() == pytest.approx(400, abs=120)

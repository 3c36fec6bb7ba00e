"""MixUp and CutMix, sample by sample, and what their labels weigh."""

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
    pixels = torch.randint(
        0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    return Batch(pixels[order], 10 * order, order, whole(size))


def mixed(
    size: int, *, mixup: float, cutmix: float, seed: int = 3
) -> tuple[Batch, MixDraws, Batch]:
    before = batch(size)
    draws = mixing.draw(seed, before.shard, (16, 12), mixup=mixup, cutmix=cutmix)
    return before, draws, mixing.apply(before, draws)


def weights_of(found: Batch) -> Tensor:
    assert found.mix is not None
    return found.mix.weights


def test_mixup_pixel_pairs() -> None:
    """65,536 pairs; products and sums stay below 2**24, so float32 holds them."""
    own, partner = torch.arange(256).repeat_interleave(256), torch.arange(256).repeat(256)
    pixels = torch.stack([own, partner]).to(torch.uint8).view(2, 1, 256, 256)
    for part in (0, 1, 777, ONE // 2, ONE - 3, ONE):
        draws = MixDraws(torch.zeros(1), torch.tensor([float(part)]), None)
        found = mixing.apply(Batch(pixels, torch.zeros(2), torch.zeros(2), whole(1)), draws).inputs
        assert torch.equal(
            found.flatten().long(), (own * part + partner * (ONE - part) + ONE // 2) // ONE
        )


def test_cutmix() -> None:
    before, draws, found = mixed(500, mixup=0.0, cutmix=1.0)
    assert draws.boxes is not None
    for number, (top, bottom, left, right) in enumerate(draws.boxes.T.tolist()):
        expected = before.inputs[number].clone()
        expected[:, top:bottom, left:right] = before.inputs[number + 1, :, top:bottom, left:right]
        assert torch.equal(found.inputs[number], expected)
        assert weights_of(found)[number].item() == pytest.approx(
            1 - (bottom - top) * (right - left) / (16 * 12)
        )


def test_mixup_and_cutmix() -> None:
    before, draws, found = mixed(4000, mixup=1.0, cutmix=1.0)
    assert draws.boxes is not None
    assert draws.image_weights is not None
    is_cut = draws.image_weights == ONE
    assert is_cut.double().mean().item() == pytest.approx(0.5, abs=0.04)  # five standard deviations
    assert (draws.boxes[1] == draws.boxes[0])[~is_cut].all()
    own = (found.inputs == before.inputs[:-1]).flatten(1)
    partner = (found.inputs == before.inputs[1:]).flatten(1)
    assert (own | partner).all(1)[is_cut].all()
    assert (
        not (own | partner)
        .all(1)[~is_cut & (weights_of(found) > 0.1) & (weights_of(found) < 0.9)]
        .any()
    )


@pytest.mark.parametrize("alpha", [0.2, 4.0])
def test_mixup_weights(alpha: float) -> None:
    weights = weights_of(mixed(20_000, mixup=alpha, cutmix=0.0)[2]).double()
    variance = 1 / (4 * (2 * alpha + 1))
    assert weights.mean().item() == pytest.approx(0.5, abs=0.02)
    assert weights.var().item() == pytest.approx(variance, rel=0.05)

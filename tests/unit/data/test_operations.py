"""TrivialAugment's and RandAugment's operations, and color jitter, against torchvision's."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as oracle

from lockstep.data.transforms import operations, photometric
from lockstep.data.transforms.operations import (
    MOVES,
    NUM_LEVELS,
    OPERATIONS,
    RANDOM,
    TRIVIAL,
    OperationDraws,
    Space,
)
from lockstep.distributed.rng import generator, uniform

SIGNED = (*MOVES, "brightness", "color", "contrast", "sharpness")
SPACES = pytest.mark.parametrize("space", [TRIVIAL, RANDOM], ids=["trivial", "rand_augment"])
LEVELS = {name: range(-30 if name in SIGNED else 0, 31, 5) for name in OPERATIONS}
SHAPES = [(3, 32, 32), (1, 28, 28)]


def example_images(channels: int, height: int, width: int) -> Tensor:
    """Noise, a soft picture of few gray levels, one gray, black, white, and black and white."""
    noise = torch.randint(
        0, 256, (channels, height, width), generator=torch.Generator().manual_seed(0)
    )
    y, x = torch.arange(height).view(-1, 1), torch.arange(width)
    soft = torch.stack([60 + 3 * y + (4 + c) * x % 90 for c in range(channels)])
    flat = [torch.full_like(noise, gray) for gray in (0, 77, 255)]
    return torch.stack([noise, soft, *flat, 255 * (noise > 99)]).to(torch.uint8)


def only(space: Space, name: str, levels: list[int], height: int, width: int) -> OperationDraws:
    """Draws of one operation, one sample for each level."""
    number = torch.full((len(levels),), OPERATIONS.index(name))
    return operations.sorted_draws(space, number, torch.tensor(levels), height, width)


def changed(space: Space, name: str, image: Tensor, levels: list[int]) -> Tensor:
    """One image, changed with each level."""
    draws = only(space, name, levels, *image.shape[1:])
    return operations.apply(image.expand(len(levels), *image.shape).contiguous(), draws)


def bin_of(space: Space, name: str, level: int, height: int, width: int) -> float:
    """Strength of torchvision's bin of this level, of no rounded float32."""
    sign, level = (-1 if level < 0 else 1), abs(level)
    if name in ("posterize", "solarize"):
        return (
            round(8 - level / (5 if space is TRIVIAL else 7.5))
            if name == "posterize"
            else 1 - level / 30
        )
    side = {"translate_x": width, "translate_y": height}.get(name, 0)
    largest = {
        TRIVIAL: {"rotate": 135.0, "translate_x": 32.0, "translate_y": 32.0},
        RANDOM: {"rotate": 30.0, "translate_x": 150 / 331 * side, "translate_y": 150 / 331 * side},
    }[space]
    others = 0.99 if space is TRIVIAL else 0.3 if name.startswith("shear") else 0.9
    return sign * level * largest.get(name, others) / 30


# by torchvision, as its TrivialAugmentWide and RandAugment call it
SHEAR = partial(oracle.affine, angle=0.0, translate=[0.0, 0.0], scale=1.0, center=[0.0, 0.0])
TRANSLATE = partial(oracle.affine, angle=0.0, scale=1.0, shear=[0.0, 0.0])
ORACLES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "identity": lambda image, _: image,
    "shear_x": lambda image, strength: SHEAR(image, shear=[math.degrees(math.atan(strength)), 0.0]),
    "shear_y": lambda image, strength: SHEAR(image, shear=[0.0, math.degrees(math.atan(strength))]),
    "translate_x": lambda image, strength: TRANSLATE(image, translate=[int(strength), 0]),
    "translate_y": lambda image, strength: TRANSLATE(image, translate=[0, int(strength)]),
    "rotate": oracle.rotate,
    "brightness": lambda image, strength: oracle.adjust_brightness(image, 1 + strength),
    "color": lambda image, strength: oracle.adjust_saturation(image, 1 + strength),
    "contrast": lambda image, strength: oracle.adjust_contrast(image, 1 + strength),
    "sharpness": lambda image, strength: oracle.adjust_sharpness(image, 1 + strength),
    "posterize": lambda image, strength: oracle.posterize(image, int(strength)),
    "solarize": lambda image, strength: oracle.solarize(image, 255 * strength),
    "autocontrast": lambda image, _: oracle.autocontrast(image),
    "equalize": lambda image, _: oracle.equalize(image),
}


def expected(space: Space, name: str, image: Tensor, level: int) -> Tensor:
    return ORACLES[name](image, bin_of(space, name, level, *image.shape[1:]))


def on_an_edge(maps: Tensor, height: int, width: int) -> Tensor:
    """Return where rounding decides between two pixels, as bool (B, H, W).

    The source position is that near to the edge between them.
    """
    y, x = (torch.arange(end, dtype=torch.float64) + 0.5 for end in (height, width))
    edges = torch.zeros(maps.shape[2], height, width, dtype=torch.bool)
    for of_x, of_y, offset in maps.unsqueeze(3).unsqueeze(4):
        position = of_x * x + of_y * y.unsqueeze(1) + offset
        edges |= (position - position.round()).abs() < 1e-4
    return edges


@SPACES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MOVES)
def test_moves_as_torchvision(space: Space, name: str, shape: tuple[int, int, int]) -> None:
    """All pixels are equal but those on an edge between two source pixels.

    Torchvision computes their positions in float32.
    """
    levels = list(LEVELS[name])
    edges = on_an_edge(only(space, name, levels, *shape[1:]).maps, *shape[1:]).unsqueeze(1)
    assert edges.double().mean() < 0.1
    for image in example_images(*shape):
        oracles = torch.stack([expected(space, name, image, level) for level in levels])
        found = changed(space, name, image, levels)
        assert torch.equal(found.where(~edges, 0), oracles.where(~edges, 0))


# The part of the pixels that may differ, by one gray level. Ours is the exact value rounded down;
# torchvision computes in float32, where what should be a whole number can end just below it: a
# channel of two levels that is stretched, or an image of one gray, whose contrast moves it away
# from itself.
MAY_DIFFER = {
    "brightness": 0.001,
    "color": 0.005,
    "contrast": 0.1,
    "sharpness": 0.001,
    "autocontrast": 0.05,
}


@SPACES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in MOVES])
def test_colors_as_torchvision(space: Space, name: str, shape: tuple[int, int, int]) -> None:
    levels = list(LEVELS[name])
    images = example_images(*shape)
    found = torch.stack([changed(space, name, image, levels) for image in images])
    oracles = torch.stack(
        [torch.stack([expected(space, name, image, level) for level in levels]) for image in images]
    )
    differences = (found.int() - oracles.int()).abs()
    assert differences.max() <= (1 if name in MAY_DIFFER else 0)
    assert (differences > 0).double().mean() <= MAY_DIFFER.get(name, 0)


@SPACES
def test_strengths_as_torchvision(space: Space) -> None:
    """In which ours are called Identity, ShearX and so on."""
    theirs = v2.TrivialAugmentWide if space is TRIVIAL else v2.RandAugment
    bins_of = {name.lower(): entry for name, entry in theirs._AUGMENTATION_SPACE.items()}
    assert bins_of.keys() == {name.replace("_", "") for name in OPERATIONS}
    for name in OPERATIONS:
        magnitudes, is_signed = bins_of[name.replace("_", "")]
        bins = magnitudes(NUM_LEVELS, 40, 56)
        assert is_signed == (name in SIGNED)
        assert (bins is None) == (name in ("identity", "autocontrast", "equalize"))
        if bins is not None:
            assert bins.tolist() == pytest.approx(
                [bin_of(space, name, k, 40, 56) for k in range(31)], abs=1e-5
            )


# -- jitter of colors -----------------------------------------------------------------------------

FACTORS = [0, 1, 333, 999, 1000, 1001, 1400, 2222, 11_000]
JITTERED = {
    "brightness": (FACTORS, oracle.adjust_brightness, 1000),
    "contrast": (FACTORS, oracle.adjust_contrast, 1000),
    "saturation": (FACTORS, oracle.adjust_saturation, 1000),
    "hue": ([-3000, -1234, -600, -1, 0, 1, 77, 1000, 2000, 2999, 3000], oracle.adjust_hue, 6000),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", JITTERED)
def test_jitter_as_torchvision(name: str, shape: tuple[int, int, int]) -> None:
    strengths, change, unit = JITTERED[name]
    for image in example_images(*shape):
        images = image.expand(len(strengths), *shape).contiguous()
        found = photometric.jitter(images, {name: torch.tensor(strengths)})
        oracles = torch.stack([change(image, strength / unit) for strength in strengths])
        assert (found.int() - oracles.int()).abs().max() <= 1
        unchanged = strengths.index(0 if name == "hue" else 1000)
        assert torch.equal(found[unchanged], image)


def test_jitter_strengths_even() -> None:
    strengths = {"brightness": 0.4, "contrast": 1.5, "saturation": 0.0, "hue": 0.1}
    drawn = photometric.draw_jitter(
        strengths, lambda name: uniform(1, torch.arange(20_000), 3, name)
    )
    ranges = {"brightness": (600, 1400), "contrast": (0, 2500), "hue": (-600, 600)}
    assert drawn.keys() == ranges.keys()
    for name, (low, high) in ranges.items():
        counts = torch.histc(drawn[name].double(), 8, low, high)
        assert counts.sum() == 20_000
        assert counts.tolist() == pytest.approx([2500] * 8, rel=0.12)  # six standard deviations


# -- a batch ---------------------------------------------------------------------------------------


def test_trivial_augment_by_sample() -> None:
    size = 400
    images = torch.randint(
        0, 256, (size, 3, 10, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    found = operations.apply(
        images, operations.draw_trivial(generator(7), size, torch.arange(size), 10, 10)
    )
    source = generator(7)
    drawn, bins, minus = (
        torch.randint(end, (size,), generator=source).tolist() for end in (14, 31, 2)
    )
    for number, image in enumerate(images):
        name, level = OPERATIONS[drawn[number]], bins[number] * (1 - 2 * minus[number])
        assert torch.equal(found[number], changed(TRIVIAL, name, image, [level])[0]), name


def test_rand_augment_in_order() -> None:
    numbers = uniform(4, torch.arange(200), 7)
    images = torch.randint(
        0, 256, (200, 3, 10, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    found = images
    for draws in operations.draw_random(numbers, 12, 10, 10):
        found = operations.apply(found, draws)
    for number, image in enumerate(images):
        for drawn, sign in numbers[:, number].view(2, 2).tolist():
            name, level = OPERATIONS[int(14 * drawn)], -12 if sign < 0.5 else 12
            (image,) = changed(RANDOM, name, image, [level])
        assert torch.equal(found[number], image)


def test_trivial_augment_even() -> None:
    size = 14 * 61 * 100
    draws = operations.draw_trivial(generator(8), size, torch.arange(size), 8, 8)
    assert draws.counts == pytest.approx([size / 14] * 14, rel=0.08)  # six standard deviations
    numbers = torch.arange(len(OPERATIONS)).repeat_interleave(torch.tensor(draws.counts))
    unsigned = torch.tensor([OPERATIONS.index(name) for name in ("posterize", "solarize")])
    found = (draws.strengths[~torch.isin(numbers, unsigned)] - 1000) // 33
    counts = (found + 30).bincount(minlength=61) / (len(found) / 62)
    # level 0 has both signs
    assert counts.tolist() == pytest.approx([1] * 30 + [2] + [1] * 30, rel=0.2)

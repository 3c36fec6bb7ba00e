"""Every operation of TrivialAugment against torchvision's, image by image."""

import math

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as oracle

from lockstep.data.transforms import photometric, trivial
from lockstep.data.transforms.trivial import MOVES, NUM_LEVELS, OPERATIONS, TrivialDraws
from lockstep.distributed.rng import generator

SIGNED = (*MOVES, "brightness", "color", "contrast", "sharpness")
LEVELS = {name: range(-30 if name in SIGNED else 0, 31) for name in OPERATIONS}
SHAPES = [(3, 32, 32), (1, 28, 28), (3, 9, 12), (1, 2, 5)]


def example_images(channels: int, height: int, width: int) -> Tensor:
    """Noise, a soft picture of few grey levels, one grey, black, white, and black and white."""
    noise = torch.randint(0, 256, (channels, height, width), generator=torch.Generator().manual_seed(0))
    y, x = torch.arange(height).view(-1, 1), torch.arange(width)
    soft = torch.stack([60 + 3 * y + (4 + c) * x % 90 for c in range(channels)])
    flat = [torch.full_like(noise, grey) for grey in (0, 77, 255)]
    return torch.stack([noise, soft, *flat, 255 * (noise > 99)]).to(torch.uint8)


def only(name: str, levels: list[int], height: int, width: int) -> TrivialDraws:
    """Draws of one operation, one sample for each level."""
    number = OPERATIONS.index(name)
    counts = tuple(len(levels) * (k == number) for k in range(len(OPERATIONS)))
    strengths = torch.tensor(levels)
    moved = len(levels) * (name in MOVES)
    maps = trivial._maps(torch.full((moved,), number), strengths[:moved], height, width)
    order = torch.arange(len(levels))
    return TrivialDraws(counts, order, order, strengths, maps)


def changed(name: str, image: Tensor, levels: list[int]) -> Tensor:
    """One image, changed with each level."""
    draws = only(name, levels, *image.shape[1:])
    return trivial.apply(image.expand(len(levels), *image.shape).contiguous(), draws)


def expected(name: str, image: Tensor, level: int) -> Tensor:
    """By torchvision, as its TrivialAugmentWide calls it, with magnitudes that are no rounded float32."""
    strength = 0.033 * level
    slope, shift = math.degrees(math.atan(strength)), int(32 * level / 30)
    match name:
        case "shear_x":
            return oracle.affine(image, 0.0, [0.0, 0.0], 1.0, [slope, 0.0], center=[0.0, 0.0])
        case "shear_y":
            return oracle.affine(image, 0.0, [0.0, 0.0], 1.0, [0.0, slope], center=[0.0, 0.0])
        case "translate_x":
            return oracle.affine(image, 0.0, [shift, 0.0], 1.0, [0.0, 0.0])
        case "translate_y":
            return oracle.affine(image, 0.0, [0.0, shift], 1.0, [0.0, 0.0])
        case "rotate":
            return oracle.rotate(image, 4.5 * level)
        case "brightness":
            return oracle.adjust_brightness(image, 1 + strength)
        case "color":
            return oracle.adjust_saturation(image, 1 + strength)
        case "contrast":
            return oracle.adjust_contrast(image, 1 + strength)
        case "sharpness":
            return oracle.adjust_sharpness(image, 1 + strength)
        case "posterize":
            return oracle.posterize(image, round(8 - level / 5))
        case "solarize":
            return oracle.solarize(image, 255 - 8.5 * level)
        case "autocontrast":
            return oracle.autocontrast(image)
        case "equalize":
            return oracle.equalize(image)
    return image


def on_an_edge(name: str, levels: list[int], height: int, width: int) -> Tensor:
    """Where a source position is so near the edge between two pixels that rounding decides: bool (levels, H, W)."""
    y, x = (torch.arange(end, dtype=torch.float64) + 0.5 for end in (height, width))
    edges = torch.zeros(len(levels), height, width, dtype=torch.bool)
    for of_x, of_y, offset in only(name, levels, height, width).maps.unsqueeze(3).unsqueeze(4):
        position = of_x * x + of_y * y.unsqueeze(1) + offset
        edges |= (position - position.round()).abs() < 1e-4
    return edges


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MOVES)
def test_a_move_takes_the_pixels_torchvision_takes(name: str, shape: tuple[int, int, int]) -> None:
    """All but those on an edge between two pixels: torchvision computes their positions in float32."""
    levels = list(LEVELS[name])
    edges = on_an_edge(name, levels, *shape[1:])
    assert edges.double().mean() < 0.1
    for image in example_images(*shape):
        oracles = torch.stack([expected(name, image, level) for level in levels])
        assert torch.equal(
            changed(name, image, levels).where(~edges.unsqueeze(1), 0), oracles.where(~edges.unsqueeze(1), 0)
        )


# The part of the pixels that may differ, by one grey level. Ours is the exact value rounded down; torchvision computes
# in float32, where what should be a whole number can end just below it: a channel of two levels that is stretched, or
# an image of one grey, whose contrast moves it away from itself.
MAY_DIFFER = {"brightness": 0.001, "color": 0.005, "contrast": 0.1, "sharpness": 0.001, "autocontrast": 0.05}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in MOVES])
def test_a_change_of_colour_is_torchvisions_within_a_grey_level(name: str, shape: tuple[int, int, int]) -> None:
    levels = list(LEVELS[name])
    images = example_images(*shape)
    found = torch.stack([changed(name, image, levels) for image in images])
    oracles = torch.stack([torch.stack([expected(name, image, level) for level in levels]) for image in images])
    differences = (found.int() - oracles.int()).abs()
    assert differences.max() <= (1 if name in MAY_DIFFER else 0)
    assert (differences > 0).double().mean() <= MAY_DIFFER.get(name, 0)


def test_strengths_are_those_of_the_wide_space() -> None:
    """The bins of torchvision's TrivialAugmentWide, in which ours are called Identity, ShearX and so on."""
    space = {name.lower(): entry for name, entry in v2.TrivialAugmentWide._AUGMENTATION_SPACE.items()}
    assert space.keys() == {name.replace("_", "") for name in OPERATIONS}
    ours = {
        **dict.fromkeys(("shear_x", "shear_y", "brightness", "color", "contrast", "sharpness"), lambda k: 0.033 * k),
        **dict.fromkeys(("translate_x", "translate_y"), lambda k: 32 * k / 30),
        "rotate": lambda k: 4.5 * k,
        "posterize": lambda k: round(8 - k / 5),
        "solarize": lambda k: 1 - k / 30,
    }
    for name in OPERATIONS:
        magnitudes, is_signed = space[name.replace("_", "")]
        bins = magnitudes(NUM_LEVELS, 32, 32)
        assert is_signed == (name in SIGNED)
        assert (bins is None) == (name not in ours)
        if bins is not None:
            assert bins.tolist() == pytest.approx([ours[name](k) for k in range(NUM_LEVELS)], abs=1e-5)


def test_colour_leaves_grey_images_as_they_are() -> None:
    images = example_images(1, 8, 8)
    assert torch.equal(photometric.color(images, torch.full((len(images),), 30)), images)


@pytest.mark.parametrize("divisor", [1000, 10_000])
def test_division_by_a_product_is_exact_for_every_whole_number_it_meets(divisor: int) -> None:
    values = torch.arange(255 * divisor + 1)
    assert torch.equal(photometric._divided(values, divisor).long(), values // divisor)


# -- a batch -----------------------------------------------------------------------------------------------------------


def test_each_sample_of_a_batch_gets_its_own_operation_and_strength() -> None:
    size = 400
    images = torch.randint(0, 256, (size, 3, 10, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    draws = trivial.draw(generator(7), size, torch.arange(size), 10, 10)
    found = trivial.apply(images, draws)
    source = generator(7)
    operations, bins, minus = (torch.randint(end, (size,), generator=source).tolist() for end in (14, 31, 2))
    for number, image in enumerate(images):
        name, level = OPERATIONS[operations[number]], bins[number] * (1 - 2 * minus[number])
        assert torch.equal(found[number], changed(name, image, [level])[0]), name


def test_every_operation_strength_and_sign_is_drawn_equally_often() -> None:
    size = 14 * 61 * 100
    draws = trivial.draw(generator(8), size, torch.arange(size), 8, 8)
    assert len(draws.counts) == len(OPERATIONS) == 14
    assert draws.counts == pytest.approx([size / 14] * 14, rel=0.08)  # six standard deviations
    levels = draws.levels.bincount() if draws.levels.min() >= 0 else (draws.levels + 30).bincount(minlength=61)
    # level 0 has both signs
    assert levels.tolist() == pytest.approx([size / 62] * 30 + [size / 31] + [size / 62] * 30, rel=0.18)

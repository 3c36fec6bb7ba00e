"""Apply TrivialAugment or RandAugment, random operations of random strengths for each sample."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.data.transforms import moves, photometric
from lockstep.data.transforms.moves import change_in_parts

MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
CHANGES: dict[str, photometric.Change] = {
    "brightness": photometric.brightness,
    "contrast": photometric.contrast,
    "posterize": photometric.posterize,
    "solarize": photometric.solarize,
    "autocontrast": photometric.autocontrast,
    "equalize": photometric.equalize,
    "color": photometric.saturation,
    "sharpness": photometric.sharpness,
    "identity": lambda images, strengths: images,
}
OPERATIONS = (*MOVES, *CHANGES)
NUM_LEVELS = 31


class Space(NamedTuple):
    """The strengths of operations at levels of -30 to 30, as torchvision defines them."""

    slope: float  # slope of a shear, per level
    # Pixels per level are a fraction, numerator and denominator, that depends on the side length.
    shift: Callable[[int], tuple[int, int]]
    degrees: float  # degrees of a rotation, per level
    bits: int  # bits that posterize drops at level 30
    # Brightness, contrast, color and sharpness change by so many thousandths per level.
    factor: int


# These are "wide" of Müller and Hutter (2021), and the space of Cubuk et al. (2020).
TRIVIAL = Space(0.033, lambda side: (16, 15), 4.5, 6, 33)
RANDOM = Space(0.01, lambda side: (5 * side, 331), 1.0, 4, 30)


class OperationDraws(NamedTuple):
    """An operation for each of the B samples of a shard, which are sorted by operation.

    `counts` are on the host, which avoids a sync.
    """

    counts: tuple[int, ...]  # samples of each operation
    order: Tensor  # int64 (B,), the samples in the order of their operations
    inverse: Tensor  # int64 (B,), the position of each sample in that order
    strengths: Tensor  # int64 (B,), in that order, as arguments of functions in photometric
    maps: Tensor  # float64 (2, 3, G), source positions of the G samples that are moved


def draw_trivial(
    source: torch.Generator, size: int, positions: Tensor, height: int, width: int
) -> OperationDraws:
    """Draw for `size` samples on the CPU, and keep the draws at `positions`."""
    operations = torch.randint(len(OPERATIONS), (size,), generator=source)
    levels = torch.randint(NUM_LEVELS, (size,), generator=source)
    levels = levels * (1 - 2 * torch.randint(2, (size,), generator=source))
    return sorted_draws(TRIVIAL, operations[positions], levels[positions], height, width)


def draw_random(
    numbers: Tensor, magnitude: int, height: int, width: int
) -> tuple[OperationDraws, ...]:
    """Choose operations of RandAugment that are applied one after the other.

    Each operation takes two of the `numbers` (2 N, B) in [0, 1).
    """
    operations = (numbers[::2] * len(OPERATIONS)).long()
    levels = magnitude * (1 - 2 * (numbers[1::2] < 0.5).long())
    return tuple(
        sorted_draws(RANDOM, *draws, height, width)
        for draws in zip(operations, levels, strict=True)
    )


def sorted_draws(
    space: Space, operations: Tensor, levels: Tensor, height: int, width: int
) -> OperationDraws:
    """Sort B samples by their `operations` int64 (B,).

    The strengths are those of `space` at `levels` int64 (B,).
    """
    operations, order = operations.sort(stable=True)
    levels = levels[order]
    counts = operations.bincount(minlength=len(OPERATIONS)).tolist()
    num_moved = sum(counts[: len(MOVES)])
    maps = _maps(space, operations[:num_moved], levels[:num_moved], height, width)
    return OperationDraws(
        tuple(counts), order, order.argsort(), _strengths(space, operations, levels), maps
    )


def apply(images: Tensor, draws: OperationDraws) -> Tensor:
    """Apply to each of `images`, uint8 (B, C, H, W), its operation.

    An operation is computed only for its samples.
    """
    sizes = [sum(draws.counts[: len(MOVES)]), *draws.counts[len(MOVES) :]]
    moved_images, *groups = images.index_select(0, draws.order).split(sizes)
    _, *strengths = draws.strengths.split(sizes)
    results = [
        change_in_parts(change, *arguments)
        for change, *arguments in zip(CHANGES.values(), groups, strengths, strict=True)
    ]
    return torch.cat(
        [change_in_parts(moves.map_pixels, moved_images, draws.maps), *results]
    ).index_select(0, draws.inverse)


def _strengths(space: Space, operations: Tensor, levels: Tensor) -> Tensor:
    """Return for each sample the argument of its operation in photometric."""
    bits = (levels.abs() * space.bits + 15).div(30, rounding_mode="floor")
    threshold = (17 * (30 - levels.abs()) + 1).div(2, rounding_mode="floor")
    strengths = torch.where(
        operations == OPERATIONS.index("posterize"), bits, 1000 + space.factor * levels
    )
    return torch.where(operations == OPERATIONS.index("solarize"), threshold, strengths)


def _maps(space: Space, operations: Tensor, levels: Tensor, height: int, width: int) -> Tensor:
    """Map each pixel to its source, as `moves.rotations` does.

    Shears keep the corner fixed, and rotations the middle.
    """
    shear_x, shear_y, translate_x, translate_y, rotate = (
        levels * (operations == k) for k in range(len(MOVES))
    )
    slope_x, slope_y = (space.slope * shear.double() for shear in (shear_x, shear_y))
    (part_x, of_x), (part_y, of_y) = space.shift(width), space.shift(height)
    shift_x = (part_x * translate_x).div(of_x, rounding_mode="trunc")
    shift_y = (part_y * translate_y).div(of_y, rounding_mode="trunc")
    zero = torch.zeros_like(shift_x)
    displacements = torch.stack([zero, slope_x, -shift_x, slope_y, zero, -shift_y]).view(2, 3, -1)
    return (
        moves.rotations(rotate.double() * math.radians(space.degrees), height, width)
        + displacements
    )

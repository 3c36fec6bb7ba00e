"""TrivialAugment and RandAugment: random operations of random strengths on each sample."""

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

    slope: float  # of a shear, for each level
    # pixels for each level, as a fraction, of the side of the image
    shift: Callable[[int], tuple[int, int]]
    degrees: float  # of a rotation, for each level
    bits: int  # that posterize drops at level 30
    # thousandths by which brightness, contrast, color and sharpness change, for each level
    factor: int


# "wide" of Müller and Hutter 2021; Cubuk et al. 2020
TRIVIAL = Space(0.033, lambda side: (16, 15), 4.5, 6, 33)
RANDOM = Space(0.01, lambda side: (5 * side, 331), 1.0, 4, 30)


class OperationDraws(NamedTuple):
    """An operation for each of the B samples of a shard, sorted by it; `counts` on the host, which avoids a sync."""

    counts: tuple[int, ...]  # samples of each operation
    order: Tensor  # int64 (B,), the samples in the order of their operations
    inverse: Tensor  # int64 (B,), the position of each sample in that order
    strengths: Tensor  # int64 (B,), in that order, as in photometric
    maps: Tensor  # float64 (2, 3, G), source positions of the G samples that are moved


def draw_trivial(
    source: torch.Generator, size: int, positions: Tensor, height: int, width: int
) -> OperationDraws:
    """Draw for `size` samples, on the CPU, and keep those at `positions`."""
    operations = torch.randint(len(OPERATIONS), (size,), generator=source)
    levels = torch.randint(NUM_LEVELS, (size,), generator=source)
    levels = levels * (1 - 2 * torch.randint(2, (size,), generator=source))
    return sorted_draws(TRIVIAL, operations[positions], levels[positions], height, width)


def draw_random(
    numbers: Tensor, magnitude: int, height: int, width: int
) -> tuple[OperationDraws, ...]:
    """Choose operations of RandAugment, one after the other, each by two of the `numbers` in [0, 1), (2 N, B)."""
    chosen = (numbers[::2] * len(OPERATIONS)).long()
    levels = magnitude * (1 - 2 * (numbers[1::2] < 0.5).long())
    return tuple(
        sorted_draws(RANDOM, *drawn, height, width) for drawn in zip(chosen, levels, strict=True)
    )


def sorted_draws(
    space: Space, operations: Tensor, levels: Tensor, height: int, width: int
) -> OperationDraws:
    """Sort B samples by their `operations`, with strengths of `space` at `levels`, both int64 (B,)."""
    operations, order = operations.sort(stable=True)
    levels = levels[order]
    counts = operations.bincount(minlength=len(OPERATIONS)).tolist()
    num_moved = sum(counts[: len(MOVES)])
    maps = _maps(space, operations[:num_moved], levels[:num_moved], height, width)
    return OperationDraws(
        tuple(counts), order, order.argsort(), _strengths(space, operations, levels), maps
    )


def apply(images: Tensor, draws: OperationDraws) -> Tensor:
    """Apply to each of `images`, uint8 (B, C, H, W), its operation; an operation runs on its samples only."""
    groups = [sum(draws.counts[: len(MOVES)]), *draws.counts[len(MOVES) :]]
    moved, *others = images.index_select(0, draws.order).split(groups)
    _, *strengths = draws.strengths.split(groups)
    changed = [
        change_in_parts(change, *part)
        for change, *part in zip(CHANGES.values(), others, strengths, strict=True)
    ]
    return torch.cat([change_in_parts(moves.map_pixels, moved, draws.maps), *changed]).index_select(
        0, draws.inverse
    )


def _strengths(space: Space, operations: Tensor, levels: Tensor) -> Tensor:
    """Return the argument of the operation in photometric, for each sample."""
    bits = (levels.abs() * space.bits + 15).div(30, rounding_mode="floor")
    threshold = (17 * (30 - levels.abs()) + 1).div(2, rounding_mode="floor")
    strengths = torch.where(
        operations == OPERATIONS.index("posterize"), bits, 1000 + space.factor * levels
    )
    return torch.where(operations == OPERATIONS.index("solarize"), threshold, strengths)


def _maps(space: Space, operations: Tensor, levels: Tensor, height: int, width: int) -> Tensor:
    """Map each pixel to its source, as `moves.rotations` does. Shears fix the corner, rotations the middle."""
    shear_x, shear_y, translate_x, translate_y, rotate = (
        levels * (operations == k) for k in range(len(MOVES))
    )
    slope_x, slope_y = (space.slope * shear.double() for shear in (shear_x, shear_y))
    (part_x, of_x), (part_y, of_y) = space.shift(width), space.shift(height)
    shift_x = (part_x * translate_x).div(of_x, rounding_mode="trunc")
    shift_y = (part_y * translate_y).div(of_y, rounding_mode="trunc")
    zero = torch.zeros_like(shift_x)
    others = torch.stack([zero, slope_x, -shift_x, slope_y, zero, -shift_y]).view(2, 3, -1)
    return moves.rotations(rotate.double() * math.radians(space.degrees), height, width) + others

"""TrivialAugment (Müller and Hutter 2021), the "wide" space: one operation per sample, of a random strength."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.data.transforms import photometric

MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
OPERATIONS = (*MOVES, *(curve.__name__ for curve in photometric.CURVES), "color", "sharpness", "identity")
NUM_LEVELS = 31


class TrivialDraws(NamedTuple):
    """Draws for the B samples of a shard, sorted by operation; `counts` is on the host, which avoids a sync."""

    counts: tuple[int, ...]  # samples of each operation
    order: Tensor  # int64 (B,), the samples in the order of their operations
    inverse: Tensor  # int64 (B,), the position of each sample in that order
    levels: Tensor  # int64 (B,), in that order: strengths -30 to 30
    maps: Tensor  # float64 (2, 3, G), source positions of the G samples that are moved


def draw(source: torch.Generator, size: int, positions: Tensor, height: int, width: int) -> TrivialDraws:
    """Draw for `size` samples, on the CPU, and keep those at `positions`."""
    operations = torch.randint(len(OPERATIONS), (size,), generator=source)
    levels = torch.randint(NUM_LEVELS, (size,), generator=source)
    levels = levels * (1 - 2 * torch.randint(2, (size,), generator=source))
    operations, order = operations[positions].sort(stable=True)
    levels = levels[positions][order]
    counts = operations.bincount(minlength=len(OPERATIONS)).tolist()
    num_moved = sum(counts[: len(MOVES)])
    maps = _maps(operations[:num_moved], levels[:num_moved], height, width)
    return TrivialDraws(tuple(counts), order, order.argsort(), levels, maps)


def apply(images: Tensor, draws: TrivialDraws) -> Tensor:
    """Apply to each of `images`, uint8 (B, C, H, W), its operation; an operation runs on its samples only."""
    num_moves, num_curves = len(MOVES), len(photometric.CURVES)
    counts = draws.counts
    curve_counts = counts[num_moves : num_moves + num_curves]
    groups = [sum(counts[:num_moves]), sum(curve_counts), *counts[num_moves + num_curves :]]
    changes = (
        lambda part, levels: _move(part, draws.maps),
        lambda part, levels: _curve(part, levels, curve_counts),
        photometric.color,
        photometric.sharpness,
        lambda part, levels: part,
    )
    parts = zip(changes, images.index_select(0, draws.order).split(groups), draws.levels.split(groups), strict=True)
    changed = [change(part, levels) if len(part) else part for change, part, levels in parts]
    return torch.cat(changed).index_select(0, draws.inverse)


def _maps(operations: Tensor, levels: Tensor, height: int, width: int) -> Tensor:
    """Map each pixel to its source: (2, 3, G), rows of x and y, with factors of x and y, and an offset.

    Positions count from the corner of the image; the centre of the first pixel is at 0.5. Shears fix the corner,
    rotations the middle.
    """
    shear_x, shear_y, translate_x, translate_y, rotate = (levels * (operations == k) for k in range(len(MOVES)))
    # for all 61 angles: the last bit of a cosine can depend on its position in a vector, and so on the cut of the batch
    angles = torch.arange(-30, 31, dtype=torch.float64) * math.radians(4.5)
    cos, sin = angles.cos()[rotate + 30], angles.sin()[rotate + 30]
    shift_x, shift_y = ((16 * shift).div(15, rounding_mode="trunc") for shift in (translate_x, translate_y))
    of_x = [cos, 0.033 * shear_x.double() - sin, (1 - cos) * (width / 2) + sin * (height / 2) - shift_x]
    of_y = [0.033 * shear_y.double() + sin, cos, (1 - cos) * (height / 2) - sin * (width / 2) - shift_y]
    return torch.stack([*of_x, *of_y]).view(2, 3, -1)


def _move(images: Tensor, maps: Tensor) -> Tensor:
    """Move by nearest neighbours, with zeros from outside.

    By products and sums of float64, each rounded: a matrix product would depend on the device and the batch.
    """
    height, width = images.shape[2:]
    x = torch.arange(width, dtype=torch.float64, device=images.device) + 0.5
    y = torch.arange(height, dtype=torch.float64, device=images.device) + 0.5
    source_x, source_y = (
        (of_x.unsqueeze(1) * x + offset.unsqueeze(1)).unsqueeze(1) + (of_y.unsqueeze(1) * y).unsqueeze(2)
        for of_x, of_y, offset in maps
    )
    # pixels from outside are read from a border of zeros
    column, row = source_x.floor_().clamp_(-1, width).add_(1), source_y.floor_().clamp_(-1, height).add_(1)
    position = row.mul_(width + 2).add_(column).long().flatten(1).unsqueeze(1)
    return F.pad(images, (1,) * 4).flatten(2).gather(2, position.expand(-1, images.shape[1], -1)).view_as(images)


def _curve(images: Tensor, levels: Tensor, counts: tuple[int, ...]) -> Tensor:
    """Apply the operations that are curves, `counts` samples each, in one lookup."""
    parts = zip(photometric.CURVES, images.split(counts), levels.split(counts), strict=True)
    curves = [curve(part, part_levels) for curve, part, part_levels in parts if len(part)]
    return photometric.apply_curves(images, torch.cat([c.expand(-1, images.shape[1], -1) for c in curves]))

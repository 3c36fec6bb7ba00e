"""Mean and standard deviation of the channels: what networks are given images by."""

from typing import NamedTuple

import torch
from torch import Tensor

NUM_SAMPLED = 4096


class Statistics(NamedTuple):
    """Mean and standard deviation of each of the C channels, of pixels as values in [0, 1]: one number for each.

    A network gets (pixels / 255 - mean) / std.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


def value_counts(pixels: Tensor) -> Tensor:
    """How often each value is in each channel of uint8 `pixels` (N, C, H, W): int64 (C, 256)."""
    return torch.stack([torch.bincount(channel.reshape(-1), minlength=256) for channel in pixels.unbind(1)])


def channel_statistics(counts: Tensor) -> Statistics:
    """Mean and standard deviation of every channel, in [0, 1], from the counts (C, 256) of its values."""
    values = torch.arange(256, dtype=torch.float64) / 255
    weights = counts / counts.sum(1, keepdim=True, dtype=torch.float64)
    mean = (weights * values).sum(1)
    std = ((values - mean.unsqueeze(1)).square() * weights).sum(1).sqrt().clamp(min=1 / 255)
    return Statistics(tuple(mean.tolist()), tuple(std.tolist()))


def unchanged(num_channels: int) -> Statistics:
    """Those of floats, which a network gets as they are: zeros and ones."""
    return Statistics((0.0,) * num_channels, (1.0,) * num_channels)


def sampled_positions(count: int) -> Tensor:
    """At most 4,096 positions of `count` images, evenly spaced, the same on every rank and wherever the pixels are."""
    number = min(count, NUM_SAMPLED)
    return torch.arange(number) * count // number

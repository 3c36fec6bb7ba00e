"""Mean and standard deviation of the channels, by which images are normalized."""

from typing import NamedTuple

import torch
from torch import Tensor

NUM_SAMPLED = 4096


class Statistics(NamedTuple):
    """Mean and standard deviation of each of the C channels, of pixels in [0, 1].

    The input of a network is (pixels / 255 - mean) / std.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


def value_counts(pixels: Tensor) -> Tensor:
    """Count each value in each channel of uint8 `pixels` (N, C, H, W): int64 (C, 256)."""
    return torch.stack([torch.bincount(channel.reshape(-1), minlength=256) for channel in pixels.unbind(1)])


def channel_statistics(counts: Tensor) -> Statistics:
    """Compute the statistics from the counts (C, 256) of the values."""
    values = torch.arange(256, dtype=torch.float64) / 255
    weights = counts / counts.sum(1, keepdim=True, dtype=torch.float64)
    mean = (weights * values).sum(1)
    std = ((values - mean.unsqueeze(1)).square() * weights).sum(1).sqrt().clamp(min=1 / 255)
    return Statistics(tuple(mean.tolist()), tuple(std.tolist()))


def identity_statistics(num_channels: int) -> Statistics:
    """Statistics of float inputs, which are not normalized: mean 0, std 1."""
    return Statistics((0.0,) * num_channels, (1.0,) * num_channels)


def sampled_positions(count: int) -> Tensor:
    """Return at most 4,096 evenly spaced positions of `count` images, the same on every rank."""
    number = min(count, NUM_SAMPLED)
    return torch.arange(number) * count // number

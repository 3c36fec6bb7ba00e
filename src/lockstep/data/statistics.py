"""Mean and standard deviation of the channels: what networks are given images by."""

from typing import NamedTuple

import torch
from torch import Tensor

NUM_SAMPLED = 4096


class Statistics(NamedTuple):
    """Of every channel, in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def channel_statistics(pixels: Tensor) -> Statistics:
    """Mean and standard deviation of every channel of uint8 `pixels` (N, C, H, W), in [0, 1], from exact counts."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in range(pixels.shape[1]):
        counts = torch.bincount(pixels[:, channel].reshape(-1), minlength=256).double()
        weights = counts / counts.sum()
        mean = (weights * values).sum()
        means.append(mean.item())
        stds.append(max(((values - mean).square() * weights).sum().sqrt().item(), 1 / 255))
    return Statistics(tuple(means), tuple(stds))


def sampled_positions(count: int) -> Tensor:
    """At most 4,096 positions of `count` images, evenly spaced, the same on every rank and wherever the pixels are."""
    number = min(count, NUM_SAMPLED)
    return torch.arange(number) * count // number

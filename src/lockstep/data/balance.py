"""Balance epochs, so that classes of unequal size occur in chosen proportions.

Within a class, every image occurs equally often, up to one occurrence.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def sizes_of(counts: Sequence[int], balance: float) -> list[int]:
    """Return the number of images of each class in an epoch.

    The numbers are proportional to count ** (1 - balance), and add up to the number of images.
    """
    powers = [count and count ** (1 - balance) for count in counts]
    exact = [sum(counts) * power / sum(powers) for power in powers]
    sizes = [int(size) for size in exact]
    by_remainder = sorted(range(len(counts)), key=lambda number: sizes[number] - exact[number])
    for number in by_remainder[: sum(counts) - sum(sizes)]:
        sizes[number] += 1
    return sizes


def order(classes: Tensor, sizes: Tensor, source: torch.Generator) -> Tensor:
    """Draw the positions of an epoch with `sizes` (K,) images of each class.

    `classes` int64 (N,) has the class of every image. Every image of a class occurs as many times
    as the class fits into its size, and a random subset occurs once more.
    """
    counts = torch.bincount(classes, minlength=len(sizes))
    shuffled = torch.randperm(len(classes), generator=source)
    by_class = shuffled[classes[shuffled].argsort(stable=True)]
    # This is the position of each image within its class.
    offset = torch.arange(len(by_class)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    size, count = sizes.repeat_interleave(counts), counts.repeat_interleave(counts)
    positions = by_class.repeat_interleave(size // count + (offset < size % count))
    return positions[torch.randperm(len(positions), generator=source)]

"""Images with their classes, in memory or in files, and the splits of a data set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from lockstep.data.images.pixels import Pixels
from lockstep.data.images.statistics import Statistics
from lockstep.distributed.rng import generator

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10, FashionMNIST


T = TypeVar("T", "FashionMNIST", "CIFAR10")


@dataclass(frozen=True, eq=False)
class Images:
    """The N images of a split, with their labels and names.

    `pixels` are uint8 (N, C, H, W): a tensor, or what gives such a tensor for positions in brackets. `labels` are int64
    (N,), -1 where they are unknown. `names` tell a person which image it is: paths below the root, or "test/17".
    """

    pixels: Pixels
    labels: Tensor
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Splits:
    """Disjoint parts of one data set, of one shape (C, H, W); `class_names[label]` names a label in each of them.

    `statistics` are mean and standard deviation of each channel, in [0, 1], by which images are normalized; None: those
    of all training images, whose pixels must then be a tensor.
    """

    train: Images
    val: Images
    test: Images
    class_names: tuple[str, ...]
    statistics: Statistics | None = None


def cut(count: int, seed: int, fractions: dict[str, float]) -> list[Tensor]:
    """Cut positions 0..count-1 into round(count * fraction) for each fraction, then the rest; disjoint, each sorted."""
    sizes = {name: round(count * fraction) for name, fraction in fractions.items()}
    for name, size in sizes.items():
        if not 0 < size < count:
            raise ValueError(
                f"data.{name}={fractions[name]} of {count} images makes a split of {size}: use a fraction that leaves "
                "at least one image in every split."
            )
    rest = count - sum(sizes.values())
    if rest < 1:
        settings = " and ".join(f"data.{name}={fraction}" for name, fraction in fractions.items())
        raise ValueError(f"{settings} of {count} images leave none for training: use smaller fractions.")
    order = torch.randperm(count, generator=generator(seed, "split"))
    return [part.sort().values for part in order.split([*sizes.values(), rest])]

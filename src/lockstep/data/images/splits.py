"""Images with their classes, in memory or in files, and the splits of a data set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from lockstep.data.images.pixels import Pixels
from lockstep.data.images.samples import Samples
from lockstep.data.images.statistics import Statistics
from lockstep.distributed.rng import generator

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10, FashionMNIST


T = TypeVar("T", "FashionMNIST", "CIFAR10")
MEMBERS = ("shape", "is_streamed", "reason", "__getitem__", "head")  # of Pixels


@dataclass(frozen=True, eq=False)
class Images:
    """The N images of a split, with their targets and names.

    `pixels` (N, C, H, W) are a tensor, uint8 of values 0 to 255, or floats that a network gets as they are; or what
    gives uint8 images for positions in brackets: `Pixels`. `targets` (N, ...) are what the task wants of them: of a
    classification class numbers int64 (N,), -1 where they are unknown. `names` tell a person which image it is: paths
    below the root, or "test/17". Raises ValueError where these do not fit each other.

    Samples of a torch Dataset bring their targets along: `targets` is empty then, (0, ...), and tells dtype and shape.
    """

    pixels: Tensor | Pixels
    targets: Tensor
    names: Sequence[str]

    def __post_init__(self) -> None:
        fault = _pixel_fault(self.pixels)
        if fault is None and len(self.pixels.shape) != 4:
            fault = f"have the shape {tuple(self.pixels.shape)}: make them (N, C, H, W)"
        if fault is not None:
            raise ValueError(f"Images: the pixels {fault}.")
        counts = {"pixels": self.pixels.shape[0], "targets": len(self.targets), "names": len(self.names)}
        if isinstance(self.pixels, Samples):
            del counts["targets"]
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{count} {what}" for what, count in counts.items())
            raise ValueError(f"Images: there are {told}: give one of each for every image.")

    @property
    def dtype(self) -> torch.dtype:
        """Of what a network's inputs are made of."""
        return self.pixels.dtype if isinstance(self.pixels, Tensor | Samples) else torch.uint8

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, eq=False)
class Splits:
    """Disjoint parts of one data set, all with images of one shape (C, H, W).

    `class_names[label]` names a label in each of them; where targets are numbers or several labels, one name for each
    of them. `statistics` are mean and standard deviation of each channel, by which images are normalized; None: those
    of all training images, whose pixels must then be a tensor.
    """

    train: Images
    val: Images
    test: Images
    class_names: tuple[str, ...]
    statistics: Statistics | None = None

    @property
    def parts(self) -> dict[str, Images]:
        """The three splits by their names."""
        return {"train": self.train, "val": self.val, "test": self.test}


def _pixel_fault(pixels: Tensor | Pixels) -> str | None:
    """What keeps `pixels` from being those of a split, None where they can be."""
    if isinstance(pixels, Tensor):
        if pixels.dtype == torch.uint8 or pixels.is_floating_point():
            return None
        return f"are {str(pixels.dtype).removeprefix('torch.')}: make them uint8 of 0 to 255, or floats"
    missing = [name for name in MEMBERS if not hasattr(pixels, name)]
    if not missing:
        return None
    return f"({type(pixels).__name__}) are no tensor and lack {', '.join(missing)}, which lockstep.data.Pixels has"


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

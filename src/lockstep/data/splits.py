"""Images with their targets, the splits of a data set, and the statistics of its channels.

Pixels are a tensor (N, C, H, W), or an object that reads or makes them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

import torch
from torch import Tensor
from typing_extensions import override

if TYPE_CHECKING:
    from lockstep.data.images.image_table import ImageTable

CHUNK = 4096  # images copied in one go
MAX_CHARACTERS = 130  # letters of a list of all classes
Kept = Mapping[str, str] | None  # splits of an earlier cut, by name


class LazyPixels(Protocol):
    """Pixels outside a tensor.

    `pixels[positions]` with int64 (n,), n >= 0, returns (n, C, H, W) in host memory, the same in
    every process. `head(n)` are the first n images, `reason` is a text on where the pixels are.
    `is_streamed`: worker processes make the images when they are needed.
    """

    @property
    def shape(self) -> tuple[int, int, int, int]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def reason(self) -> str: ...
    @property
    def is_streamed(self) -> bool: ...
    def __len__(self) -> int: ...
    def __getitem__(self, positions: Tensor, /) -> Tensor: ...
    def head(self, count: int, /) -> "LazyPixels": ...


Pixels = Tensor | LazyPixels


class ImageError(ValueError):
    """Image files that cannot be used: `errors` has one line per file, the message the first ten.

    `positions` are those of the files in the list that was read, if it was read completely.
    """

    def __init__(self, errors: Sequence[str], positions: Sequence[int] = ()) -> None:
        super().__init__(errors, positions)
        self.errors: list[str] = list(errors)
        self.positions = positions

    @override
    def __str__(self) -> str:
        return shorten_lines(self.errors)


def shorten_lines(lines: Sequence[str]) -> str:
    """Keep ten of the lines, and count the others."""
    more = [f"... and {len(lines) - 10} more"] if len(lines) > 10 else []
    return "\n".join([*lines[:10], *more])


def makes_targets(pixels: Pixels) -> TypeGuard[Any]:
    """Return whether the pixels are `Samples` of a torch Dataset, which make inputs and targets together."""
    return hasattr(pixels, "no_targets")


def is_streamed(pixels: Pixels) -> TypeGuard[LazyPixels]:
    """Return whether worker processes make the images when they are needed."""
    return not isinstance(pixels, Tensor) and pixels.is_streamed


def num_bytes(pixels: Pixels) -> int:
    return math.prod(pixels.shape) * pixels.dtype.itemsize


def whole(pixels: Pixels, device: str | torch.device = "cpu") -> Tensor:
    """Return all images in one tensor on `device`."""
    if isinstance(pixels, Tensor):
        return pixels.to(device)
    images = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    for positions in torch.arange(len(images)).split(CHUNK):
        images[positions[0] : positions[-1] + 1] = pixels[positions].to(device)
    return images


@dataclass(frozen=True, eq=False)
class Images:
    """The N images of a split, with their targets and names.

    `pixels` (N, C, H, W) is a tensor: uint8 of 0 to 255, or floats that the network gets unchanged.
    Sources of Lockstep may keep pixels elsewhere. `targets` (N, ...) are those of the task: for
    classification class numbers int64 (N,), -1 if unknown. `names` identify images in messages:
    paths below the root, or "test/17". `groups` are the patients, machines or bursts that images
    are of; None if unknown. Raises ValueError if lengths, dtype or shape do not match.

    Samples of a torch Dataset contain their targets: `targets` (0, ...) then has only their dtype
    and shape.
    """

    pixels: Pixels
    targets: Tensor
    names: Sequence[str]
    groups: Sequence[str] | None = None

    def __post_init__(self) -> None:
        problem = ""
        if not isinstance(self.pixels, Tensor) and not hasattr(self.pixels, "is_streamed"):
            name = type(self.pixels).__name__
            problem = f"({name}) are not a tensor: give one, or a torch Dataset to data=dataset"
        elif self.dtype != torch.uint8 and not self.dtype.is_floating_point:
            problem = f"are {str(self.dtype).removeprefix('torch.')}: make them uint8 of 0 to 255, or floats"
        elif isinstance(self.pixels, Tensor) and self.pixels.dim() != 4:
            problem = f"have the shape {tuple(self.pixels.shape)}: make them (N, C, H, W)"
        if problem:
            raise ValueError(f"Images: the pixels {problem}.")
        counts = {
            "pixels": len(self.pixels),
            "targets": len(self.targets),
            "names": len(self.names),
        }
        if makes_targets(self.pixels):
            del counts["targets"]
        if self.groups is not None:
            counts["groups"] = len(self.groups)
        if len(set(counts.values())) > 1:
            text = ", ".join(f"{count} {what}" for what, count in counts.items())
            raise ValueError(f"Images: there are {text}: give one of each for every image.")

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the pixels."""
        return self.pixels.dtype

    @property
    def classes(self) -> Tensor | None:
        """Class numbers int64 (N,); None if targets are others, or of a Dataset that does not list them."""
        if makes_targets(self.pixels):
            return None if self.pixels.labels is None else self.pixels.labels[self.pixels.rows]
        is_one_number = self.targets.dim() == 1 and not self.targets.is_floating_point()
        return self.targets.long() if is_one_number else None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def num_groups(self) -> int:
        """Groups that these images are of; 0 if unknown."""
        return len({*(self.groups or ())})

    def head(self, count: int) -> "Images":
        """Return the first images."""
        pixels = self.pixels[:count] if isinstance(self.pixels, Tensor) else self.pixels.head(count)
        groups = self.groups and self.groups[:count]
        return Images(pixels, self.targets[:count], self.names[:count], groups)


class Statistics(NamedTuple):
    """Mean and standard deviation of each of the C channels, of pixels in [0, 1].

    The input of a network is (pixels / 255 - mean) / std.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Splits:
    """Disjoint parts of one data set, with images of one shape (C, H, W).

    `class_names[label]` is the name of a class; if targets are numbers or several labels, there is
    a name for each. Images are normalized by `statistics`; None computes them from all training
    images, which must be a tensor then. `files` are the image files of a folder or list, and names
    are paths below `folder`.
    """

    train: Images
    val: Images
    test: Images
    class_names: tuple[str, ...]
    statistics: Statistics | None = None
    files: "ImageTable | None" = None
    folder: Path | None = None

    @property
    def parts(self) -> dict[str, Images]:
        """The splits by name: train, val and test."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def class_counts(self, split: str) -> list[int] | None:
        """Images of each class in a split; None if targets are not class numbers, or not known."""
        classes, num_classes = self.parts[split].classes, len(self.class_names)
        if classes is None or not len(classes) or classes.min() < 0 or classes.max() >= num_classes:
            return None
        return torch.bincount(classes, minlength=num_classes).tolist()

    def absent_classes(self, split: str) -> list[str]:
        """Classes without an image in a split; none if targets are not class numbers, or not known."""
        counts = self.class_counts(split) or ()
        return [name for name, count in zip(self.class_names, counts, strict=False) if not count]


def describe_counts(names: Sequence[str], counts: Sequence[int], balance: float = 0) -> str:
    """List the images of each class, of many classes the fewest and most, and with `balance` those of an epoch."""
    texts = [f"{count:,}" for count in counts]
    if balance:
        from lockstep.data.balance import sizes_of

        texts = [
            f"{text} -> {size:,}"
            for text, size in zip(texts, sizes_of(counts, balance), strict=True)
        ]
    every = ", ".join(f"{name}: {text}" for name, text in zip(names, texts, strict=True))
    if len(every) > MAX_CHARACTERS:
        ends = [counts.index(end(counts)) for end in (min, max)]
        every = f"{len(names):,} classes: {' to '.join(f'{texts[number]} ({names[number]})' for number in ends)}"
    return every + (f" in an epoch, data.balance={balance:g}" if balance else "")


def describe_groups(splits: Splits) -> str:
    """List groups and images, as in "train 96 (images: 1,204), val 12 (images: 150)"; empty without groups."""
    counts = {name: (part.num_groups, len(part)) for name, part in splits.parts.items()}
    return ", ".join(
        [f"{name} {of:,} (images: {images:,})" for name, (of, images) in counts.items() if of]
    )


def value_counts(pixels: Tensor) -> Tensor:
    """Count each value in each channel of uint8 `pixels` (N, C, H, W): int64 (C, 256)."""
    return torch.stack(
        [torch.bincount(channel.reshape(-1), minlength=256) for channel in pixels.unbind(1)]
    )


def channel_statistics(counts: Tensor) -> Statistics:
    """Compute the statistics from the counts (C, 256) of the values."""
    values = torch.arange(256, dtype=torch.float64) / 255
    weights = counts / counts.sum(1, keepdim=True, dtype=torch.float64)
    mean = (weights * values).sum(1)
    std = ((values - mean.unsqueeze(1)).square() * weights).sum(1).sqrt().clamp(min=1 / 255)
    return Statistics(tuple(mean.tolist()), tuple(std.tolist()))


def statistics_of(pixels: Pixels) -> Statistics:
    assert isinstance(pixels, Tensor), "other sources set statistics"
    if pixels.is_floating_point():
        return identity_statistics(pixels.shape[1])
    return channel_statistics(value_counts(pixels))


def identity_statistics(num_channels: int) -> Statistics:
    """Statistics of float inputs, which are not normalized: mean 0, std 1."""
    return Statistics((0.0,) * num_channels, (1.0,) * num_channels)


class Fold(NamedTuple):
    """Part `number` of `num_folds` equal parts of the training images: the test split of a run."""

    number: int
    num_folds: int

    @classmethod
    def chosen(cls, number: int, num_folds: int | None) -> "Fold | None":
        """Return a fold, None without `num_folds`."""
        return None if num_folds is None else cls(number, num_folds)


def rounded_sizes(count: int, fractions: Mapping[str, float]) -> list[int]:
    """Return the size of a split for each of `fractions`, and of the rest. Raises ValueError if one is empty."""
    sizes = [round(count * fraction) for fraction in fractions.values()]
    sizes.append(count - sum(sizes))
    refuse_empty(f"{count} images", fractions, sizes)
    return sizes


def refuse_empty(images: str, fractions: Mapping[str, float], sizes: Sequence[int]) -> None:
    if sizes[-1] < 1 or sum(fractions.values()) >= 1:
        settings = " and ".join(
            f"data.{name}_fraction={fraction}" for name, fraction in fractions.items()
        )
        raise ValueError(f"{settings} of {images} leave none for training: use smaller fractions.")
    for (name, fraction), size in zip(fractions.items(), sizes, strict=False):
        if size < 1:
            problem = f"makes a split of {size}: leave at least one image in every split."
            raise ValueError(f"data.{name}_fraction={fraction} of {images} {problem}")

"""Define images with targets, the splits of a data set, and the statistics of its channels.

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

CHUNK = 4096  # images that are copied at once
MAX_CHARACTERS = 130  # characters of a list of all classes
Shape = tuple[int, int, int, int]  # (N, C, H, W)
Kept = Mapping[str, str] | None  # earlier splits of images, by name


class LazyPixels(Protocol):
    """Pixels that are not stored in a tensor.

    `pixels[positions]` with int64 (n,), n >= 0, returns (n, C, H, W) in host memory, the same in
    every process. `take(positions)` returns these images without reading them. `reason` is a text
    that says where the pixels are. If `is_streamed`, worker processes make the images on demand.
    """

    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def reason(self) -> str: ...
    @property
    def is_streamed(self) -> bool: ...
    def __len__(self) -> int: ...
    def __getitem__(self, positions: Tensor, /) -> Tensor: ...
    def take(self, positions: Tensor | slice, /) -> "LazyPixels": ...


Pixels = Tensor | LazyPixels


class ImageError(ValueError):
    """An error for image files that cannot be used.

    `errors` has one line per file, and the message has the first ten. `positions` are the positions
    of these files in the list that was read, if it was read completely.
    """

    def __init__(self, errors: Sequence[str], positions: Sequence[int] = ()) -> None:
        super().__init__(errors, positions)
        self.errors = list(errors)
        self.positions = positions

    @override
    def __str__(self) -> str:
        return shorten_lines(self.errors)


def shorten_lines(lines: Sequence[str]) -> str:
    """Keep the first ten lines, and add a line with the number of the others."""
    suffix = [f"... and {len(lines) - 10} more"] if len(lines) > 10 else []
    return "\n".join([*lines[:10], *suffix])


def makes_targets(pixels: Pixels) -> TypeGuard[Any]:
    """Return whether the pixels are `Samples` of a Dataset, which make inputs with targets."""
    return hasattr(pixels, "empty_targets")


def is_streamed(pixels: Pixels) -> TypeGuard[LazyPixels]:
    """Return whether worker processes make the images on demand."""
    return not isinstance(pixels, Tensor) and pixels.is_streamed


def num_bytes(pixels: Pixels) -> int:
    return math.prod(pixels.shape) * pixels.dtype.itemsize


def all_pixels(pixels: Pixels, device: str | torch.device = "cpu") -> Tensor:
    """Return all images in one tensor on `device`."""
    if isinstance(pixels, Tensor):
        return pixels.to(device)
    images = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    for positions in torch.arange(len(images)).split(CHUNK):
        images[positions[0] : positions[-1] + 1] = pixels[positions].to(device)
    return images


def is_hwc(pixels: Tensor) -> bool:
    """Return whether uint8 images look like (..., H, W, C), with at most 4 channels."""
    return pixels.dtype == torch.uint8 and pixels.shape[-1] <= 4 < min(pixels.shape[-3:-1])


@dataclass(frozen=True, eq=False)
class Images:
    """The N images of a split, with their targets and names.

    `pixels` is a tensor (N, C, H, W), either uint8 of 0 to 255, or floats that the network gets
    unchanged. Sources of Lockstep may store pixels elsewhere. `targets` (N, ...) are those of the
    task. For classification they are class numbers int64 (N,), where -1 is unknown. `names`
    identify images in messages, and are paths below the root, or texts such as "test/17". `groups`
    are the patients, machines or bursts to which the images belong, or None if unknown. Raises
    ValueError if lengths, dtype or shape do not match.

    Samples of a torch Dataset contain their targets. `targets` (0, ...) then has only their dtype
    and shape.
    """

    pixels: Pixels
    targets: Tensor
    names: Sequence[str]
    groups: Sequence[str] | None = None

    def __post_init__(self) -> None:
        problem, pixels = "", self.pixels
        if not isinstance(pixels, Tensor) and not hasattr(pixels, "is_streamed"):
            type_name = type(pixels).__name__
            problem = (
                f"({type_name}) are not a tensor: give one, or a torch Dataset to data=dataset"
            )
        elif pixels.dtype != torch.uint8 and not pixels.dtype.is_floating_point:
            dtype = str(pixels.dtype).removeprefix("torch.")
            problem = f"are {dtype}: make them uint8 of 0 to 255, or floats"
        elif isinstance(pixels, Tensor) and (pixels.dim() != 4 or is_hwc(pixels)):
            problem = f"have the shape {tuple(pixels.shape)}: make them (N, C, H, W)"
        if problem:
            raise ValueError(f"Images: the pixels {problem}.")
        counts = {"pixels": len(pixels), "targets": len(self.targets), "names": len(self.names)}
        if makes_targets(pixels):
            del counts["targets"]
        if self.groups is not None:
            counts["groups"] = len(self.groups)
        if len({*counts.values()}) > 1:
            listing = ", ".join(f"{count} {field}" for field, count in counts.items())
            raise ValueError(f"Images: there are {listing}: give one of each for every image.")

    @property
    def dtype(self) -> torch.dtype:
        return self.pixels.dtype

    @property
    def classes(self) -> Tensor | None:
        """Return the class numbers int64 (N,), or None if they are unknown.

        They are None if targets are not class numbers, and for a Dataset that does not list them.
        """
        targets = self.targets
        if makes_targets(self.pixels):
            return self.pixels.labels
        return None if targets.dim() != 1 or targets.is_floating_point() else targets.long()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def num_groups(self) -> int:
        """Return the number of groups to which these images belong, or 0 if unknown."""
        return len({*(self.groups or ())})

    def take(self, positions: Tensor | slice) -> "Images":
        """Return the images at `positions`, int64 (n,)."""
        pixels = self.pixels
        pixels = pixels[positions] if isinstance(pixels, Tensor) else pixels.take(positions)
        targets = self.targets if makes_targets(pixels) else self.targets[positions]
        rows: list[int] = torch.arange(len(self))[positions].tolist()
        groups = None if self.groups is None else [self.groups[row] for row in rows]
        return Images(pixels, targets, [self.names[row] for row in rows], groups)


class Statistics(NamedTuple):
    """Mean and standard deviation of each of the C channels, for pixels in [0, 1].

    The input of a network is (pixels / 255 - mean) / std.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Splits:
    """The disjoint splits of one data set, whose images have one shape (C, H, W).

    `class_names[label]` is the name of a class. If targets are numbers or several labels, there is
    a name for each of them. Images are normalized by `statistics`. If it is None, it is computed
    from all training images, which must be a tensor then. `files` are the image files of a folder
    or list. In this case, names are paths below `folder`.
    """

    train: Images
    val: Images
    test: Images
    class_names: tuple[str, ...]
    statistics: Statistics | None = None
    files: "ImageTable | None" = None
    folder: Path | None = None

    @property
    def by_name(self) -> dict[str, Images]:
        """Return the splits by name, in the order train, val and test."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def class_counts(self, split: str) -> list[int] | None:
        """Return the number of images of each class in a split.

        Returns None if targets are not class numbers, or if they are unknown.
        """
        classes, num_classes = self.by_name[split].classes, len(self.class_names)
        if classes is None or not len(classes) or classes.min() < 0 or classes.max() >= num_classes:
            return None
        return torch.bincount(classes, minlength=num_classes).tolist()

    def absent_classes(self, split: str) -> list[str]:
        """Return the classes that have no image in a split.

        The list is empty if targets are not class numbers, or if they are unknown.
        """
        counts = self.class_counts(split) or ()
        return [name for name, count in zip(self.class_names, counts, strict=False) if not count]


def describe_counts(class_names: Sequence[str], counts: Sequence[int], balance: float) -> str:
    """List the number of images of each class, or the range if there are many classes.

    With `balance`, the number of images in an epoch is added.
    """
    entries = [f"{count:,}" for count in counts]
    suffix = ""
    if balance:
        from lockstep.data.balance import sizes_of

        sizes = sizes_of(counts, balance)
        entries = [f"{count:,} -> {size:,}" for count, size in zip(counts, sizes, strict=True)]
        suffix = f" in an epoch, data.balance={balance:g}"
    listing = ", ".join(map("{}: {}".format, class_names, entries))
    if len(listing) > MAX_CHARACTERS:
        low, high = counts.index(min(counts)), counts.index(max(counts))
        ends = f"{entries[low]} ({class_names[low]}) to {entries[high]} ({class_names[high]})"
        listing = f"{len(class_names):,} classes: {ends}"
    return listing + suffix


def describe_groups(splits: Splits) -> str:
    """List groups and images, as in "train 96 (images: 1,204), val 12 (images: 150)".

    The text is empty if there are no groups.
    """
    return ", ".join(
        f"{split} {images.num_groups:,} (images: {len(images):,})"
        for split, images in splits.by_name.items()
        if images.groups
    )


def value_counts(pixels: Tensor) -> Tensor:
    """Count the values in each channel of uint8 `pixels` (N, C, H, W), as int64 (C, 256)."""
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
    """Return mean 0 and std 1, the statistics of float inputs, which are not normalized."""
    return Statistics((0.0,) * num_channels, (1.0,) * num_channels)


class Fold(NamedTuple):
    """Part `number` of `num_folds` equal parts of the training images, used as the test split."""

    number: int
    num_folds: int


def rounded_sizes(count: int, fractions: Mapping[str, float]) -> list[int]:
    """Return the size of a split for each of `fractions`, and the size of the rest.

    Raises ValueError if a split is empty whose fraction is not 0.
    """
    sizes = [round(count * fraction) for fraction in fractions.values()]
    sizes.append(count - sum(sizes))
    refuse_empty(f"{count} images", fractions, sizes)
    return sizes


def refuse_empty(images: str, fractions: Mapping[str, float], sizes: Sequence[int]) -> None:
    """Raise ValueError if training or a split with a fraction above 0 has no image."""
    if sizes[-1] < 1 or sum(fractions.values()) >= 1:
        settings = " and ".join(map("data.{}_fraction={}".format, fractions, fractions.values()))
        raise ValueError(f"{settings} of {images} leave none for training: use smaller fractions.")
    for (split, fraction), size in zip(fractions.items(), sizes, strict=False):
        if fraction and size < 1:
            raise ValueError(
                f"data.{split}_fraction={fraction} of {images} makes a split of {size}: "
                "use a larger fraction, or add images of each class (if labels are numbers, set "
                "data.targets=numbers)."
            )

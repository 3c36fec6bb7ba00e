"""Where the pixels of a data set are: in a tensor, or behind what gives such a tensor for positions in brackets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from lockstep.data.images.decode import check_size, decode, fit
from lockstep.data.images.listing import Names

CHUNK = 4096  # images that are copied at once
Positions = Tensor | Sequence[int] | slice


@runtime_checkable
class Pixels(Protocol):
    """The N images of a split in a format of one's own, for `Images(pixels, targets, names)`; all have one size.

    In brackets, for positions, int64 (n,) with n >= 0, it gives their uint8 pixels (n, C, H, W) in host memory, the
    same ones every time and in every process. `is_streamed` says where that is done: true has `data.num_workers`
    processes decode while others train, so that the object must be picklable; false has each training process read,
    which pays where the pixels are in memory already. `reason` says in the first lines of a run where they are.
    `head(count)` are the first `count` images. Raises ImageFault for files that cannot be used.
    """

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape (N, C, H, W) of all images."""
        ...

    @property
    def is_streamed(self) -> bool:
        """Whether worker processes decode the images whenever they are needed."""
        ...

    @property
    def reason(self) -> str:
        """Where the pixels are, or why they are streamed, in a few words for people."""
        ...

    def __getitem__(self, positions: Tensor, /) -> Tensor:
        """The uint8 pixels (n, C, H, W) of the images at `positions`, int64 (n,)."""
        ...

    def head(self, count: int, /) -> "Pixels":
        """The first `count` images, or all where there are fewer."""
        ...


@dataclass(frozen=True, eq=False)
class Rows:
    """Some images of a mapped file, `table` (M, C, H, W), in the order of `rows`: nothing is copied."""

    table: Tensor
    rows: Tensor
    origin: str
    is_streamed = False

    @property
    def reason(self) -> str:
        """Which file is mapped."""
        return f"memory-mapped ({self.origin})"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape (N, C, H, W) of all images."""
        _, channels, height, width = self.table.shape
        return len(self.rows), channels, height, width

    def __getitem__(self, positions: Positions) -> Tensor:
        return self.table.index_select(0, self.rows[positions])

    def head(self, count: int) -> "Rows":
        """The first `count` images."""
        return Rows(self.table, self.rows[:count], self.origin)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files that are decoded whenever they are asked for, fitted to `size`; `reason` says why.

    Transparent pixels are laid on `background`. `first` names the file whose size all have; empty where they are
    scaled. Raises ImageFault in brackets.
    """

    files: Names
    size: tuple[int, int]
    channels: int
    background: str
    first: str
    reason: str
    is_streamed = True

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape (N, C, H, W) of all images."""
        return len(self.files), self.channels, *self.size

    def __getitem__(self, positions: Positions) -> Tensor:
        wanted = positions if isinstance(positions, Tensor) else torch.arange(len(self.files))[positions]
        pixels = torch.empty(len(wanted), *self.shape[1:], dtype=torch.uint8)
        for row, position in zip(pixels, wanted.tolist(), strict=True):
            path = self.files[position]
            image = decode(path, self.channels, self.background).pixels
            if self.first:
                check_size(image, path, self.size, self.first)
            row.copy_(fit(image, self.size))
        return pixels

    def head(self, count: int) -> "ImageFiles":
        """The first `count` images."""
        files = self.files.select(np.arange(min(count, len(self.files))))
        return ImageFiles(files, self.size, self.channels, self.background, self.first, self.reason)


def is_streamed(pixels: Tensor | Pixels) -> bool:
    """Whether worker processes decode the images whenever they are needed."""
    return not isinstance(pixels, Tensor) and pixels.is_streamed


def taken(pixels: Tensor | Pixels, positions: Tensor) -> Tensor:
    """The images at `positions`, int64 (n,), which are where the pixels are.

    Not by brackets where it is a tensor: 0.4 against 3.4 million 32x32 images/s (one CPU thread, 2026-11-21).
    """
    return pixels.index_select(0, positions) if isinstance(pixels, Tensor) else pixels[positions]


def head(pixels: Tensor | Pixels, count: int) -> Tensor | Pixels:
    """The first `count` images."""
    return pixels[:count] if isinstance(pixels, Tensor) else pixels.head(count)


def num_bytes(pixels: Tensor | Pixels) -> int:
    """Bytes of all images when they are decoded."""
    return pixels.nbytes if isinstance(pixels, Tensor) else math.prod(pixels.shape)


def whole(pixels: Tensor | Pixels) -> Tensor:
    """All images in one tensor in host memory."""
    return copied(pixels, torch.device("cpu"))


def copied(pixels: Tensor | Pixels, device: torch.device) -> Tensor:
    """All images in one tensor on `device`; images that are not in memory are copied in chunks."""
    if isinstance(pixels, Tensor):
        return pixels.to(device)
    images = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    for positions in torch.arange(len(images)).split(CHUNK):
        images[positions[0] : positions[-1] + 1] = pixels[positions].to(device)
    return images

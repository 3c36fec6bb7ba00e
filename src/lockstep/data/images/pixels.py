"""Where the pixels of a data set are: in a tensor, in a file that is mapped into memory, or still in image files.

All three have a `shape` (N, C, H, W) and give the uint8 pixels (n, C, H, W) of positions in brackets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lockstep.data.images.decode import check_size, decode, fit
from lockstep.data.images.listing import Names

CHUNK = 4096  # images that are copied at once
Positions = Tensor | Sequence[int] | slice


@dataclass(frozen=True, eq=False)
class Rows:
    """Some images of a mapped file, `table` (M, C, H, W), in the order of `rows`: nothing is copied."""

    table: Tensor
    rows: Tensor
    origin: str

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

    `first` names the file whose size all have; empty where they are scaled. Raises ImageFault in brackets.
    """

    files: Names
    size: tuple[int, int]
    channels: int
    first: str
    reason: str

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape (N, C, H, W) of all images."""
        return len(self.files), self.channels, *self.size

    def __getitem__(self, positions: Positions) -> Tensor:
        wanted = positions if isinstance(positions, Tensor) else torch.arange(len(self.files))[positions]
        pixels = torch.empty(len(wanted), *self.shape[1:], dtype=torch.uint8)
        for row, position in zip(pixels, wanted.tolist(), strict=True):
            path = self.files[position]
            image = decode(path, self.channels)
            if self.first:
                check_size(image, path, self.size, self.first)
            row.copy_(fit(image, self.size))
        return pixels

    def head(self, count: int) -> "ImageFiles":
        """The first `count` images."""
        files = self.files.select(np.arange(min(count, len(self.files))))
        return ImageFiles(files, self.size, self.channels, self.first, self.reason)


Pixels = Tensor | Rows | ImageFiles


def taken(pixels: Pixels, positions: Tensor) -> Tensor:
    """The images at `positions`, int64 (n,), which are where the pixels are.

    Not by brackets where it is a tensor: 0.4 against 3.4 million 32x32 images/s (one CPU thread, 2026-11-21).
    """
    return pixels.index_select(0, positions) if isinstance(pixels, Tensor) else pixels[positions]


def head(pixels: Pixels, count: int) -> Pixels:
    """The first `count` images."""
    return pixels[:count] if isinstance(pixels, Tensor) else pixels.head(count)


def num_bytes(pixels: Pixels) -> int:
    """Bytes of all images when they are decoded."""
    count, channels, height, width = pixels.shape
    return count * channels * height * width


def whole(pixels: Pixels) -> Tensor:
    """All images in one tensor in host memory."""
    return copied(pixels, torch.device("cpu"))


def copied(pixels: Pixels, device: torch.device) -> Tensor:
    """All images in one tensor on `device`; images that are not in memory are copied in chunks."""
    if isinstance(pixels, Tensor):
        return pixels.to(device)
    images = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    for positions in torch.arange(len(images)).split(CHUNK):
        images[positions[0] : positions[-1] + 1] = pixels[positions].to(device)
    return images

"""Pixels of a data set: a tensor (N, C, H, W), or an object that reads or makes them.

`pixels[positions]` with int64 (n,), n >= 0, returns (n, C, H, W) in host memory, the same in every process. `head(n)`
are the first n images, `reason` describes for people where the pixels are.
"""

import math
import os
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypeIs

from lockstep.data.images.decode import check_size, decode, fit
from lockstep.data.images.samples import Samples

CHUNK = 4096  # images copied in one go


@dataclass(frozen=True, eq=False)
class Rows:
    """Images of a memory-mapped file, `table` (M, C, H, W), in the order of `rows`."""

    table: Tensor
    rows: Tensor
    reason: str

    @property
    def shape(self) -> tuple[int, int, int, int]:
        _, channels, height, width = self.table.shape
        return len(self.rows), channels, height, width

    def __getitem__(self, positions: Tensor) -> Tensor:
        return self.table.index_select(0, self.rows[positions])

    def head(self, count: int) -> "Rows":
        return replace(self, rows=self.rows[:count])


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files that are decoded when they are read, fitted to `size`. Reading raises ImageError.

    `files` are encoded paths: an array of bytes is sent to worker processes ten times as fast as a list. Transparent
    pixels are laid on `background`. `first` is the file whose size all must have; empty if they are scaled.
    """

    files: NDArray[np.bytes_]
    size: tuple[int, int]
    channels: int
    background: str
    first: str
    reason: str

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.files), self.channels, *self.size

    def __getitem__(self, positions: Tensor) -> Tensor:
        pixels = torch.empty(len(positions), *self.shape[1:], dtype=torch.uint8)
        for row, path in zip(pixels, map(os.fsdecode, self.files[positions.numpy()]), strict=True):
            image = decode(path, self.channels, self.background).pixels
            if self.first:
                check_size(image, path, self.size, self.first)
            row.copy_(fit(image, self.size))
        return pixels

    def head(self, count: int) -> "ImageFiles":
        return replace(self, files=self.files[:count])


Pixels = Tensor | Rows | ImageFiles | Samples


def is_streamed(pixels: Pixels) -> TypeIs[ImageFiles | Samples]:
    """Return whether worker processes make the images when they are needed."""
    return isinstance(pixels, ImageFiles | Samples)


def num_bytes(pixels: Pixels) -> int:
    """Bytes of all decoded images."""
    return pixels.nbytes if isinstance(pixels, Tensor) else math.prod(pixels.shape)


def whole(pixels: Pixels, device: str | torch.device = "cpu") -> Tensor:
    """Return all images in one tensor on `device`."""
    if isinstance(pixels, Tensor):
        return pixels.to(device)
    images = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    for positions in torch.arange(len(images)).split(CHUNK):
        images[positions[0] : positions[-1] + 1] = pixels[positions].to(device)
    return images

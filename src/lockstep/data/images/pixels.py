"""Where the pixels of a data set are: in a tensor, or in what gives such a tensor for positions in brackets.

In brackets, for positions, int64 (n,) with n >= 0, all give pixels (n, C, H, W) in host memory, the same ones in every
process. `shape` (N, C, H, W) is that of all images, `head(count)` the first ones, `reason` says where they are.
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
    """Some images of a mapped file, `table` (M, C, H, W), in the order of `rows`: nothing is copied."""

    table: Tensor
    rows: Tensor
    reason: str

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape (N, C, H, W) of all images."""
        _, channels, height, width = self.table.shape
        return len(self.rows), channels, height, width

    def __getitem__(self, positions: Tensor) -> Tensor:
        return self.table.index_select(0, self.rows[positions])

    def head(self, count: int) -> "Rows":
        """The first `count` images."""
        return replace(self, rows=self.rows[:count])


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files that are decoded whenever they are asked for, fitted to `size`; `reason` says why.

    `files` are their paths as the file system has them: an array of bytes reaches worker processes ten times as fast as
    a list. Transparent pixels are laid on `background`. `first` names the file whose size all have; empty where they
    are scaled. Raises ImageError in brackets.
    """

    files: NDArray[np.bytes_]
    size: tuple[int, int]
    channels: int
    background: str
    first: str
    reason: str

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape (N, C, H, W) of all images."""
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
        """The first `count` images."""
        return replace(self, files=self.files[:count])


Pixels = Tensor | Rows | ImageFiles | Samples


def is_streamed(pixels: Pixels) -> TypeIs[ImageFiles | Samples]:
    """Whether worker processes make the images whenever they are needed."""
    return isinstance(pixels, ImageFiles | Samples)


def num_bytes(pixels: Pixels) -> int:
    """Bytes of all images when they are decoded."""
    return pixels.nbytes if isinstance(pixels, Tensor) else math.prod(pixels.shape)


def whole(pixels: Pixels, device: str | torch.device = "cpu") -> Tensor:
    """All images in one tensor on `device`; images that are not in memory are copied in chunks."""
    if isinstance(pixels, Tensor):
        return pixels.to(device)
    images = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    for positions in torch.arange(len(images)).split(CHUNK):
        images[positions[0] : positions[-1] + 1] = pixels[positions].to(device)
    return images

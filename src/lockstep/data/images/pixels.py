"""Pixels of a data set: a tensor (N, C, H, W), or an object that reads or makes them.

`pixels[positions]` with int64 (n,), n >= 0, returns (n, C, H, W) in host memory, the same in every process. `head(n)`
are the first n images, `reason` is a text on where the pixels are.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import TypeIs

from lockstep.data.images.files import ImageFiles
from lockstep.data.images.samples import Samples

CHUNK = 4096  # images copied in one go


@dataclass(frozen=True, eq=False)
class Rows:
    """Images of a memory-mapped file, `table` (M, C, H, W), in the order of `rows`."""

    table: Tensor
    rows: Tensor
    reason: str
    dtype: ClassVar[torch.dtype] = torch.uint8

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        _, channels, height, width = self.table.shape
        return len(self), channels, height, width

    def __getitem__(self, positions: Tensor) -> Tensor:
        return self.table.index_select(0, self.rows[positions])

    def head(self, count: int) -> "Rows":
        return replace(self, rows=self.rows[:count])


Pixels = Tensor | Rows | ImageFiles | Samples


def is_streamed(pixels: Pixels) -> TypeIs[ImageFiles | Samples]:
    """Return whether worker processes make the images when they are needed."""
    return isinstance(pixels, ImageFiles | Samples)


def num_bytes(pixels: Pixels) -> int:
    """Bytes of all decoded images."""
    return math.prod(pixels.shape) * pixels.dtype.itemsize


def whole(pixels: Pixels, device: str | torch.device = "cpu") -> Tensor:
    """Return all images in one tensor on `device`."""
    if isinstance(pixels, Tensor):
        return pixels.to(device)
    images = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    for positions in torch.arange(len(images)).split(CHUNK):
        images[positions[0] : positions[-1] + 1] = pixels[positions].to(device)
    return images

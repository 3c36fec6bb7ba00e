"""Store scaled images of any sizes in one file that all processes map.

The file can be an unnamed file in memory. It has the sizes, int32 (N, 2) in NumPy's format, and
then the bytes of every image, (h, w, C).
"""

import contextlib
import mmap
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.reduction import DupFd
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from lockstep.data.images.image_files import ImageFiles, Sizes, Store
from lockstep.data.images.image_table import Integers
from lockstep.data.images.preprocessing import Preprocessing, size_of
from lockstep.data.splits import ImageError, Shape


class RaggedTable:
    """N images of `sizes` (N, 2), mapped read-only from the bytes of an open file after `start`.

    A process that receives the table maps the same file, even if it has been deleted since, so that
    nothing is copied.
    """

    def __init__(self, descriptor: int, start: int, sizes: Sizes, channels: int) -> None:
        """Raise ValueError if the file is shorter than its images."""
        self._descriptor = descriptor
        self._start = start
        self.sizes = sizes
        self.channels = channels
        self._starts = starts_of(sizes, channels)
        mapping = mmap.mmap(descriptor, start + self.nbytes, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about tensors that are not writable.
            self._bytes = torch.from_numpy(np.frombuffer(mapping, np.uint8, offset=start))

    @classmethod
    def open(cls, file: BinaryIO, channels: int) -> "RaggedTable":
        """Map a file from its beginning, and close it.

        Raises ValueError if the file is incomplete.
        """
        with file:
            file.seek(0)
            sizes = np.lib.format.read_array(file)
            return cls(os.dup(file.fileno()), file.tell(), sizes, channels)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_table, (DupFd(self._descriptor), self._start, self.sizes, self.channels)

    @property
    def nbytes(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, row: int) -> Tensor:
        """Return an image (C, h, w), whose memory has the order (h, w, C)."""
        height, width = self.sizes[row].tolist()
        start, end = self._starts[row : row + 2].tolist()
        return self._bytes[start:end].view(height, width, self.channels).permute(2, 0, 1)


def _receive_table(descriptor: Any, *arguments: Any) -> RaggedTable:
    return RaggedTable(descriptor.detach(), *arguments)


def starts_of(sizes: Sizes, channels: int) -> Integers:
    """Return the offset of each image, and the end of the last one, as (N + 1,)."""
    return np.concatenate([[0], np.cumsum(sizes.prod(1, dtype=np.int64) * channels)])


def memory_file() -> BinaryIO:
    """Open an unnamed file in memory, or on disk if the system does not support that."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("images"), "w+b")
    return tempfile.TemporaryFile()


@contextlib.contextmanager
def stores(file: BinaryIO, files: ImageFiles, sizes: Sizes) -> Iterator[Store]:
    """Yield the function that stores scaled `files` in `file`.

    `sizes` (N, 2) are those in the headers, perhaps before the EXIF orientation is applied. The
    file is complete when the block ends.
    """
    np.save(file, sizes)
    file.flush()
    descriptor, starts = file.fileno(), starts_of(sizes, files.channels) + file.tell()

    def store(position: int, scaled: Tensor) -> None:
        if scaled.numel() != starts[position + 1] - starts[position]:
            path = os.fsdecode(files.files[position])
            raise ImageError(
                [f"image {path} has another size than its header: replace or delete it."]
            )
        sizes[position], offset = size_of(scaled), int(starts[position])
        pixels = memoryview(scaled.permute(1, 2, 0).numpy().tobytes())
        while pixels:
            num_written = os.pwrite(descriptor, pixels, offset)
            pixels, offset = pixels[num_written:], offset + num_written

    yield store
    file.seek(0)
    np.save(file, sizes)


@dataclass(frozen=True, eq=False)
class Rows:
    """Images of a table in the order of `rows`, cropped or padded when they are read."""

    table: RaggedTable
    rows: Tensor
    reason: str
    preprocessing: Preprocessing
    dtype = torch.uint8
    is_streamed = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> Shape:
        height, width = self.preprocessing.size or self.table.sizes[0].tolist()
        return len(self), self.table.channels, height, width

    def __getitem__(self, positions: Tensor) -> Tensor:
        pixels = torch.empty(len(positions), *self.shape[1:], dtype=torch.uint8)
        for row, position in zip(pixels, positions.tolist(), strict=True):
            row.copy_(self.preprocessing.crop(self.scaled_image(position)))
        return pixels

    def scaled_image(self, position: int) -> Tensor:
        """Return one image (C, h, w) before it is cropped."""
        return self.table[int(self.rows[position])]

    def take(self, positions: Tensor | slice) -> "Rows":
        return replace(self, rows=self.rows[positions])

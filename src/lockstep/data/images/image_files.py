"""Read image files as pixels, all at once in threads, or on demand in worker processes."""

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.data.images.decoded_image import DecodedImage, decode, open_image, upright_size
from lockstep.data.images.image_table import Integers
from lockstep.data.images.preprocessing import Preprocessing, Size, size_of
from lockstep.data.splits import ImageError, Shape
from lockstep.system.hardware import num_cores

Sizes = NDArray[np.int32]  # (N, 2)
NUM_SAMPLED = 4096
NUM_PER_RUN = 32  # images a thread decodes in one task
# A store is called with the position of an image and its scaled pixels (C, h, w).
Store = Callable[[int, Tensor], object]


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """N image files as uint8 pixels (C, H, W), after `preprocessing`.

    If `preprocessing` has no size, all images must have the size of that at `first_path`. `files`
    are encoded paths, because an array of bytes is sent to worker processes ten times as fast as a
    list. `mean_bytes` is the average size of a file. `reason` tells users why the images are not
    decoded in advance.
    """

    files: NDArray[np.bytes_]
    preprocessing: Preprocessing
    first_path: str
    channels: int
    mean_bytes: float
    reason: str = ""
    dtype = torch.uint8
    is_streamed = True

    def __len__(self) -> int:
        return len(self.files)

    @property
    def shape(self) -> Shape:
        return len(self), self.channels, *self._size

    @cached_property
    def _size(self) -> Size:
        return self.preprocessing.size or size_of(
            decode(self.first_path, self.channels, self.preprocessing).pixels
        )

    def decode(self, position: int) -> DecodedImage:
        """Decode one image before it is scaled. Raises ImageError, also if its size is wrong."""
        path = os.fsdecode(self.files[position])
        image = decode(path, self.channels, self.preprocessing)
        height, width = image.size
        if self.preprocessing.size is None and (height, width) != self.shape[2:]:
            raise ImageError(
                [
                    f"data.image_size=null needs images of one size, but {self.first_path} has "
                    f"{self.shape[2]}x{self.shape[3]} (HxW) and {path} {height}x{width}: set "
                    f"data.image_size, e.g. {min(self.shape[2:])}."
                ]
            )
        return image

    def scaled_image(self, position: int) -> Tensor:
        """Return one image (C, h, w) before it is cropped. Raises ImageError."""
        image = self.decode(position)
        return self.preprocessing.scale(image.pixels, image.size)

    def scaled_sizes(self) -> Sizes:
        """Read the headers, and return the sizes (N, 2) of the scaled images.

        The size is 0 for a file that is not an image. If all images become squares, the EXIF
        orientation is not read, because the number of bytes is the same either way.
        """
        is_square = (
            self.preprocessing.size is not None
            and self.preprocessing.size[0] == self.preprocessing.size[1]
        )

        def size(file: bytes) -> Size:
            with contextlib.suppress(Exception), open_image(os.fsdecode(file)) as image:
                return self.preprocessing.scaled_size(
                    *((image.height, image.width) if is_square else upright_size(image))
                )
            return 0, 0

        runs = np.split(self.files, range(NUM_PER_RUN, len(self), NUM_PER_RUN))
        with self.threads(num_cores()) as threads:
            sizes = threads.map(lambda run: [*map(size, run.tolist())], runs)
            return np.concatenate([*sizes]).astype(np.int32)

    def read(self, positions: Tensor) -> tuple[Tensor, dict[int, str]]:
        """Return the pixels (n, C, H, W) at `positions` (n,), and the errors by position.

        There is an error for each image that cannot be used.
        """
        pixels, errors = torch.empty(len(positions), *self.shape[1:], dtype=torch.uint8), {}
        for row, position in zip(pixels, positions.tolist(), strict=True):
            try:
                row.copy_(self.preprocessing.crop(self.scaled_image(position)))
            except ImageError as error:
                errors[position] = str(error)
        return pixels, errors

    def __getitem__(self, positions: Tensor) -> Tensor:
        """Return the pixels (n, C, H, W) at `positions` (n,). Raises ImageError."""
        pixels, errors = self.read(positions)
        if errors:
            raise ImageError(list(errors.values()))
        return pixels

    def take(self, positions: Tensor | slice) -> "ImageFiles":
        return replace(self, files=self.files[torch.arange(len(self))[positions].numpy()])

    def num_threads(self, max_threads: int) -> int:
        """Return the number of decoding threads: `max_threads`, or one for small files.

        Several threads would wait for the interpreter if files are small. On two CPU cores, one
        thread decodes 9,000 images/s at 32x32 and two decode 5,000. At 500x500 they decode 550 and
        850 (2026-11-21).
        """
        return max_threads if self.mean_bytes > 16 * 1024 else 1

    def threads(self, max_threads: int) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(
            self.num_threads(max_threads), initializer=torch.set_num_threads, initargs=(1,)
        )


def files_below(
    folder: Path,
    names: Sequence[str],
    states: Integers,
    preprocessing: Preprocessing,
    channels: int,
) -> ImageFiles:
    """Return the files `names` (N) below `folder`, whose `states` (N, 3) start with their sizes."""
    paths = np.array([os.fsencode(f"{folder}/{name}") for name in names])
    mean_bytes = float(states[:, 0].mean())
    return ImageFiles(paths, preprocessing, os.fsdecode(paths[0]), channels, mean_bytes)


def decode_all(
    images: ImageFiles,
    max_threads: int,
    store: Store,
    show: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Call `store` with the position and the scaled pixels (C, h, w) of each image.

    Any of the threads calls it. `show` gets the number of images done and the number of all images.
    Raises ImageError with every image that cannot be used, after the other images are stored.
    """
    errors: dict[int, str] = {}

    def decode_run(run: Tensor) -> int:
        for position in run.tolist():
            try:
                store(position, images.scaled_image(position))
            except ImageError as error:
                errors[position] = str(error)
        return int(run[-1]) + 1

    with images.threads(max_threads) as threads:
        for num_done in threads.map(decode_run, torch.arange(len(images)).split(NUM_PER_RUN)):
            show(num_done, len(images))
    if errors:
        positions = sorted(errors)
        raise ImageError([errors[position] for position in positions], positions)


def sampled_positions(count: int) -> Tensor:
    """Return at most 4,096 evenly spaced positions of `count` images, the same on every rank."""
    number = min(count, NUM_SAMPLED)
    return torch.arange(number) * count // number

"""Crop images at random while they are read, with draws that depend on (seed, epoch, index)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.data.images.image_files import ImageFiles
from lockstep.data.images.preprocessing import resize, size_of
from lockstep.data.images.ragged_table import Rows
from lockstep.data.splits import Pixels
from lockstep.distributed.rng import uniform

NUM_TRIES = 10


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """Crop a random area of random aspect ratio, and resize it to the input size.

    The method is that of Szegedy et al. (2015). The area is uniform in `scale`, as a fraction of
    the image, and the ratio of width to height is log-uniform in `ratio`. The first of ten draws
    that fits is used. If none fits, the crop is the largest central one whose aspect ratio is in
    `ratio`, as in torchvision.
    """

    scale: Sequence[float]
    ratio: Sequence[float]
    seed: int

    def __call__(
        self, pixels: Pixels, positions: Tensor, epoch: int, drawn_by: Tensor | None = None
    ) -> Tensor:
        """Crop the scaled images at `positions`, and return uint8 pixels (n, C, H, W).

        The random draws depend on `drawn_by`, or on `positions` if it is None.
        """
        assert isinstance(pixels, Tensor | Rows | ImageFiles), (
            "a Dataset crops in its own transforms"
        )
        interpolation = (
            "bilinear" if isinstance(pixels, Tensor) else pixels.preprocessing.interpolation
        )
        crops = torch.empty(len(positions), *pixels.shape[1:], dtype=torch.uint8)
        drawn_by = positions if drawn_by is None else drawn_by
        draws = uniform(2 + 2 * NUM_TRIES, drawn_by, self.seed, epoch, "crop").T.tolist()
        for crop, position, numbers in zip(crops, positions.tolist(), draws, strict=True):
            image = (
                pixels[position] if isinstance(pixels, Tensor) else pixels.scaled_image(position)
            )
            top, left, height, width = self.box(numbers, *size_of(image))
            region = image[:, top : top + height, left : left + width]
            crop.copy_(resize(region, size_of(crop), interpolation))
        return crops

    def box(self, numbers: Sequence[float], height: int, width: int) -> tuple[int, int, int, int]:
        """Return top, left, height and width of the crop.

        `numbers` (22) are uniform in [0, 1).
        """
        (low, high), (narrow, wide) = self.scale, self.ratio
        for of_area, of_shape in zip(numbers[2::2], numbers[3::2], strict=True):
            area = height * width * (low + (high - low) * of_area)
            shape = narrow * (wide / narrow) ** of_shape
            new_height, new_width = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
            if 0 < new_height <= height and 0 < new_width <= width:
                top = int(numbers[0] * (height - new_height + 1))
                left = int(numbers[1] * (width - new_width + 1))
                return top, left, new_height, new_width
        new_height = max(1, min(height, round(width / narrow)))
        new_width = max(1, min(width, round(height * wide)))
        return (height - new_height) // 2, (width - new_width) // 2, new_height, new_width

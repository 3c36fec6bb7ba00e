"""Compute rectangles in images, one per sample.

They are int64 (4, B) of top, bottom, left and right, with exclusive ends.
"""

import math

import torch
from torch import Tensor


def square(center_y: Tensor, center_x: Tensor, side: int) -> Tensor:
    """Return squares of `side` pixels that start at center - side // 2, and may cross the edge."""
    top, left = center_y - side // 2, center_x - side // 2
    return torch.stack([top, top + side, left, left + side])


def centers_inside(numbers: Tensor, side: int, height: int, width: int) -> list[Tensor]:
    """Return centers y, x of squares of `side` pixels inside the image.

    `numbers` (2, B) in [0, 1) select the centers.
    """
    return [
        (fraction * (end - side + 1)).long() + side // 2
        for fraction, end in zip(numbers, (height, width), strict=True)
    ]


def erasing_boxes(
    source: torch.Generator, size: int, probability: float, height: int, width: int
) -> Tensor:
    """Draw rectangles of random erasing (Zhong et al. 2017, algorithm 1) for `size` samples.

    The area is 2 to 33 % of the image, and the ratio of height to width is log-uniform in 0.3 to
    3.3. The first of ten draws that fits is used. If none fits, nothing is erased, as in
    torchvision. The rectangle is empty if nothing is erased.
    """
    uniform = torch.rand(10, 2, size, generator=source, dtype=torch.float64)
    area = height * width * (0.02 + (0.33 - 0.02) * uniform[:, 0])
    aspect = (math.log(0.3) + math.log(3.3 / 0.3) * uniform[:, 1]).exp()
    heights, widths = (area * aspect).sqrt().round().long(), (area / aspect).sqrt().round().long()
    fits = (heights < height) & (widths < width)
    first_fit = fits.long().argmax(0, keepdim=True)
    is_erased = fits.any(0) & (
        torch.rand(size, generator=source, dtype=torch.float64) < probability
    )
    box_height, box_width = (
        sides.gather(0, first_fit)[0] * is_erased for sides in (heights, widths)
    )
    offset = torch.rand(2, size, generator=source, dtype=torch.float64)
    top = (offset[0] * (height - box_height + 1)).long()
    left = (offset[1] * (width - box_width + 1)).long()
    return torch.stack([top, top + box_height, left, left + box_width])


def box_mask(boxes: Tensor, height: int, width: int) -> Tensor:
    """Return a mask bool (B, H, W) of the pixels in `boxes`."""
    top, bottom, left, right = boxes.unsqueeze(2)
    y, x = torch.arange(height, device=boxes.device), torch.arange(width, device=boxes.device)
    rows = ((y >= top) & (y < bottom)).unsqueeze(2)
    # Expanding the rows is twice as fast as broadcasting one value per row (CPU, 2026-11-21).
    return rows.expand(-1, height, width).contiguous() & ((x >= left) & (x < right)).unsqueeze(1)

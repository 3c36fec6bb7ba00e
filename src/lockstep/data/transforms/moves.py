"""Move the pixels of each image by maps from a pixel to its source, by crops and by flips.

On a CPU, a few images are changed at a time, so that intermediate results fit into its caches.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

# This is the size of a part of the images for each thread. A complete batch of 64 at 224 pixels
# takes 1 to 6 times as long (one thread, 2026-11-26).
PART_BYTES = 1 << 19


def rotations(angles: Tensor, height: int, width: int) -> Tensor:
    """Map each pixel to its source, for images that are rotated counterclockwise about the middle.

    `angles` (B,) are in radians. Maps are float64 (2, 3, B), with a row for x and one for y. A row
    has the factors of x and y and an offset. Positions count from the corner of the image, and the
    center of the first pixel is at 0.5.
    """
    # Cosines are computed one by one, because the last bit can depend on the position in a vector,
    # and so on how the batch is split.
    cos, sin = (
        torch.tensor([function(angle) for angle in angles.tolist()], dtype=torch.float64)
        for function in (math.cos, math.sin)
    )
    of_x = [cos, -sin, (1 - cos) * (width / 2) + sin * (height / 2)]
    of_y = [sin, cos, (1 - cos) * (height / 2) - sin * (width / 2)]
    return torch.stack([*of_x, *of_y]).view(2, 3, -1)


def map_pixels(images: Tensor, maps: Tensor) -> Tensor:
    """Move images (B, C, H, W) by `maps` to the nearest pixel, with zeros from outside.

    Positions are computed by products and sums of float64, each of which is rounded. A matrix
    product would depend on the device and the batch.
    """
    height, width = images.shape[2:]
    x, y = (
        torch.arange(side, dtype=torch.float64, device=images.device) + 0.5
        for side in (width, height)
    )
    source_x, source_y = (
        (of_x * x + offset).unsqueeze(1) + (of_y * y).unsqueeze(2)
        for of_x, of_y, offset in maps.unsqueeze(3)
    )
    # Pixels from outside are read from a border of zeros.
    column = source_x.floor_().clamp_(-1, width).add_(1)
    row = source_y.floor_().clamp_(-1, height).add_(1)
    position = row.mul_(width + 2).add_(column).long().flatten(1).unsqueeze(1)
    return (
        F.pad(images, (1,) * 4)
        .flatten(2)
        .gather(2, position.expand(-1, images.shape[1], -1))
        .view_as(images)
    )


def crop_padded(images: Tensor, window: Tensor, *, padding: int, is_reflected: bool) -> Tensor:
    """Crop each of B images after padding it with a border of `padding` pixels, and flip some.

    The border is zeros or the reflected image. `window` is int64 (4, B) with top, left, and 0 or 1
    for a vertical and for a horizontal flip.
    """
    batch, channels, height, width = images.shape
    corners, flips = window.unsqueeze(2).split(2)
    rows, columns = (
        corner
        + (end - 1) * is_flipped
        + (1 - 2 * is_flipped) * torch.arange(end, device=images.device)
        for end, corner, is_flipped in zip((height, width), corners, flips, strict=True)
    )
    if is_reflected:
        rows, columns = (
            end - 1 - (end - 1 - (places - padding).abs()).abs()
            for places, end in ((rows, height), (columns, width))
        )
    else:
        images = F.pad(images, (padding,) * 4)
    # With positions in the flattened image, crop and flips are a single gather.
    position = (rows * images.shape[3]).unsqueeze(2) + columns.unsqueeze(1)
    position = position.flatten(1).unsqueeze(1).expand(batch, channels, height * width)
    return images.flatten(2).gather(2, position).reshape(batch, channels, height, width)


def flip_images(images: Tensor, is_flipped: Tensor, *, dim: int) -> Tensor:
    """Flip the images for which int64 (B,) `is_flipped` is 1 along `dim`.

    On a CPU, `torch.where` takes six times as long (2026-11-26).
    """
    numbers = torch.arange(len(images), device=images.device)
    return torch.cat([images, images.flip(dim)]).index_select(0, numbers + len(images) * is_flipped)


def change_in_parts(change: Callable[..., Tensor], images: Tensor, *draws: Tensor) -> Tensor:
    """Return `change(images, *draws)`, computed in parts on a CPU.

    The result has the shape of the images (B, C, H, W). The draws (..., B) have a column for each
    image.
    """
    if not len(images):
        return images
    part_bytes = PART_BYTES * torch.get_num_threads()
    size = len(images) if images.is_cuda else max(1, part_bytes * len(images) // images.nbytes)
    if size >= len(images):
        return change(images, *draws)
    result = torch.empty_like(images)
    draw_chunks = (columns.split(size, -1) for columns in draws)
    for target, *chunk in zip(result.split(size), images.split(size), *draw_chunks, strict=True):
        target.copy_(change(*chunk))
    return result

"""Find pairs of images that are near-duplicates.

Near-duplicates show the same scene, but differ in size, quality, brightness, contrast or a crop of
up to 10 %. The distance of two images is 1 - r, where r is the correlation of their sharpened pixel
values at 16x16. One image is compared uncropped, with the best of several crops of the other.
Brightness and contrast do not affect the correlation. Only pairs that are similar at 8x8 get a
distance. Hashes of 64 to 256 bits miss most crops (docs/log.md).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.data.images.preprocessing import resize, size_of

# This function is called with the number of images done and the number of all images.
Show = Callable[[int, int], None]
SIDE = 40  # pixels of a thumbnail, from which crops are taken
# An image is compared if its shorter side has at least this many pixels, which a crop of 32 pixels
# has. At 28x28, most digits would be near others.
MIN_SIDE = 29
# An image is compared if the standard deviation of its pixel values is at least this. Below it,
# JPEG artifacts decide.
MIN_CONTRAST = 2.0
COARSE = ((1.0, 1), (0.95, 2), (0.9, 2))
FINE = ((1.0, 1), (0.975, 3), (0.95, 3), (0.925, 4), (0.9, 5))
# This fraction of its neighborhood is subtracted from a pixel. Otherwise, all images of a horizon
# would be similar.
SHARPNESS = 0.8
MAX_COARSE_DISTANCE = 0.08  # distance up to which the details of candidates are compared
MAX_CANDIDATES = 32  # candidates of each crop, which bounds the work if all images are similar
# From this number of images on, a search visits this number of cells. Of 40,000 images it finds the
# pairs that a search of all cells finds (docs/log.md).
MIN_INDEXED, NUM_VISITED = 10_000, 8
BLOCK = 512  # images that are compared at once


class Pair(NamedTuple):
    """The positions of two images, first < second, and their distance."""

    distance: float
    first: int
    second: int


def thumbnail(pixels: Tensor) -> Tensor | None:
    """Return the mean over the channels of an image (C, H, W), as pixel values (SIDE, SIDE).

    Returns None for an image that is too small or too flat to be compared.
    """
    if min(size_of(pixels)) < MIN_SIDE:
        return None
    if pixels.is_floating_point():
        low, high = pixels.aminmax()
        pixels = (pixels - low) / (high - low).clamp(min=1e-9) * 255
    gray = resize(pixels, (SIDE, SIDE)).float().mean(0)
    return gray.half() if gray.std() >= MIN_CONTRAST else None


def near_pairs(
    thumbnails: Sequence[Tensor],
    threshold: float,
    show: Show = lambda *_: None,
) -> list[Pair]:
    """Return the pairs up to a distance of `threshold`, nearest first.

    Each crop of an image has at most its `MAX_CANDIDATES` candidates. `show` gets the progress.
    """
    if len(thumbnails) < 2:
        return []
    gray = torch.stack([*thumbnails])
    candidates = torch.cat([*_candidates(gray, show)]).sort(1).values.unique(dim=0)
    positions, rows = candidates.unique(return_inverse=True)
    # Distances are rounded, because their last bits depend on the machine.
    distances = [round(distance, 4) for distance in _distances(gray[positions], rows).tolist()]
    pairs = zip(distances, candidates.tolist(), strict=True)
    return sorted(Pair(distance, *row) for distance, row in pairs if distance <= threshold)


def _candidates(gray: Tensor, show: Show) -> Iterator[Tensor]:
    """Yield position pairs (n, 2) of images, of which one is near a crop of the other at 8x8."""
    blocks = gray.split(BLOCK)
    images = torch.cat([next(_vectors(block, COARSE, 8)) for block in blocks])
    index = _index(images)
    for number, block in enumerate(blocks):
        start = number * BLOCK
        show(start, len(gray))
        for crop in _vectors(block, COARSE, 8):
            similarities, neighbors = map(torch.from_numpy, index.search(crop, MAX_CANDIDATES + 1))
            rows, columns = (similarities >= 1 - MAX_COARSE_DISTANCE).nonzero(as_tuple=True)
            pairs = torch.stack([rows + start, neighbors[rows, columns]], 1)
            yield pairs[pairs[:, 0] != pairs[:, 1]]


def _index(vectors: Tensor) -> Any:
    """Return an index of Faiss for the inner products of vectors (n, 64).

    Many vectors are divided into cells by k-means, and a search visits the nearest cells only, so
    that its time grows with n ** 1.5 (Sivic and Zisserman 2003).
    """
    import faiss

    num_cells = round(2 * math.sqrt(len(vectors)))
    cells = f"IVF{num_cells}," if len(vectors) >= MIN_INDEXED else ""
    index: Any = faiss.index_factory(vectors.shape[1], f"{cells}Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    if cells:
        index.nprobe = NUM_VISITED
    return index


def _distances(gray: Tensor, pairs: Tensor) -> Tensor:
    """Return the distances (n,) of pairs (n, 2) of positions in `gray`.

    The crops of each image are made only once.
    """
    blocks = gray.split(BLOCK)
    images = torch.cat([next(_vectors(block, FINE, 16, SHARPNESS)) for block in blocks])
    similarities = torch.full((len(pairs),), -1.0)
    for number, block in enumerate(blocks):
        rows, sides = (pairs // BLOCK == number).nonzero(as_tuple=True)
        positions, partners = pairs[rows, sides] % BLOCK, images[pairs[rows, 1 - sides]]
        for crop in _vectors(block, FINE, 16, SHARPNESS):
            similarities.scatter_reduce_(0, rows, (partners * crop[positions]).sum(1), "amax")
    return (1 - similarities).clamp(min=0)


def _vectors(
    gray: Tensor, crops: Sequence[tuple[float, int]], side: int, sharpness: float = 0
) -> Iterator[Tensor]:
    """Yield the complete images, then each crop, scaled to `side`, as vectors (n, side ** 2).

    The vectors have mean 0 and length 1. `crops` are pairs of a fraction of the side and the number
    of positions along it.
    """
    images = gray.float()
    for fraction, number in crops:
        area_means = [
            _area_means(side, fraction, position / max(number - 1, 1)) for position in range(number)
        ]
        for vertical in area_means:
            lines = vertical @ images
            for horizontal in area_means:
                pixels = (lines @ horizontal.T).unsqueeze(1)
                if sharpness:
                    pixels = pixels - sharpness * F.avg_pool2d(
                        F.pad(pixels, (1, 1, 1, 1), mode="replicate"), 3, 1
                    )
                vectors = pixels.flatten(1)
                yield F.normalize(vectors - vectors.mean(1, keepdim=True), dim=1)


def _area_means(side: int, fraction: float, position: float) -> Tensor:
    """Return the matrix (side, SIDE) that averages over the areas of a crop.

    `position` is 0 for the first crop and 1 for the last one.
    """
    length = SIDE * fraction / side
    low = (SIDE - SIDE * fraction) * position + length * torch.arange(side).unsqueeze(1)
    pixels = torch.arange(SIDE)
    overlaps = torch.minimum(low + length, pixels + 1) - torch.maximum(low, pixels)
    return overlaps.clamp(min=0) / length

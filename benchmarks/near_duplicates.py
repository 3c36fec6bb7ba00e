"""Copies that `lockstep data check` misses and false ones that it reports, for ten kinds of edits.

    python -m benchmarks.near_duplicates cifar/train

10,000 JPEGs of a folder, chosen at random. Each edit is made of each image, at most 1,000; "missed"
are those whose distance from the original is above the default of data.near_duplicates. The last
rows are the pairs among the images themselves, and the time to find those of 10,000 to 40,000.
"""

import io
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter

from benchmarks.table import Row, alternate, parser, progress, publish, row
from lockstep.config.schema.target_sections import Data
from lockstep.data.near_duplicates import near_pairs, thumbnail

THRESHOLD = float(Data.model_fields["near_duplicates"].default)
TILE, MAX_EDITED = 80, 1000
SIZES = (10_000, 20_000, 40_000)  # images among which all pairs are searched
Edit = Callable[[Image.Image, np.random.Generator], Image.Image]


def _scaled(image: Image.Image, factor: float) -> Image.Image:
    return image.resize(
        (round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC
    )


def _jpeg(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def _cropped(image: Image.Image, cut: float, draws: np.random.Generator) -> Image.Image:
    """Cut a fraction off both sides, at a random place."""
    width, height = (round(side * (1 - cut)) for side in image.size)
    left, top = (
        int(draws.integers(image.width - width + 1)),
        int(draws.integers(image.height - height + 1)),
    )
    return image.crop((left, top, left + width, top + height))


EDITS: dict[str, Edit] = {
    "half the size": lambda image, _: _scaled(image, 0.5),
    "twice the size": lambda image, _: _scaled(image, 2),
    "JPEG of quality 30": lambda image, _: _jpeg(image, 30),
    "a crop of 95 % of the sides": lambda image, draws: _cropped(image, 0.05, draws),
    "a crop of 90 % of the sides": lambda image, draws: _cropped(image, 0.10, draws),
    "brighter by 30 %": lambda image, _: ImageEnhance.Brightness(image).enhance(1.3),
    "darker by 40 %": lambda image, _: ImageEnhance.Brightness(image).enhance(0.6),
    "70 % of the contrast": lambda image, _: ImageEnhance.Contrast(image).enhance(0.7),
    "gamma 1.4": lambda image, _: image.point(
        [round(255 * (value / 255) ** 1.4) for value in range(256)] * 3
    ),
    "blurred": lambda image, _: image.filter(ImageFilter.GaussianBlur(image.width / 80)),
}


def tiles() -> list[Image.Image]:
    """Cut the two sample photographs of scikit-learn into tiles, which do not overlap."""
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    return [
        photograph.crop((left, top, left + TILE, top + TILE))
        for photograph in photographs
        for top in range(0, photograph.height - TILE + 1, TILE)
        for left in range(0, photograph.width - TILE + 1, TILE)
    ]


def images_below(root: Path, count: int) -> list[Image.Image]:
    """Read images of a folder, chosen at random."""
    paths = sorted(path for path in root.rglob("*.jpg"))
    chosen = np.random.default_rng(0).permutation(len(paths))[:count]
    return [Image.open(paths[number]).convert("RGB") for number in chosen]


def _thumbnail(image: Image.Image) -> torch.Tensor | None:
    return thumbnail(torch.from_numpy(np.array(image)).permute(2, 0, 1))


def rows_of(what: str, images: Sequence[Image.Image]) -> list[Row]:
    torch.set_num_threads(1)
    progress(f"{what}: thumbnails")
    draws, rows, thumbnails = np.random.default_rng(1), list[Row](), [*map(_thumbnail, images)]
    for name, edit in EDITS.items():
        progress(f"{what}: {name}")
        edited = [_thumbnail(edit(image, draws)) for image in images[:MAX_EDITED]]
        pairs = [*zip(thumbnails, edited, strict=False)]
        found = (
            near_pairs([each for each in pair if each is not None], THRESHOLD) for pair in pairs
        )
        rows.append(
            Row(f"{what}: {name}, missed", f"{sum(not each for each in found):,}", "", len(pairs))
        )
    compared = [each for each in thumbnails if each is not None]
    pairs = near_pairs(compared, THRESHOLD)
    return [*rows, Row(f"{what}: pairs among themselves", f"{len(pairs):,}", "", len(images))]


def rows_of_search(images: Sequence[Image.Image], num_rounds: int) -> list[Row]:
    """Measure the search alone, on one thread."""
    progress(f"thumbnails of {len(images):,}")
    thumbnails = [each for each in map(_thumbnail, images) if each is not None]

    def seconds(size: int) -> float:
        started = time.perf_counter()
        near_pairs(thumbnails[:size], THRESHOLD)
        return time.perf_counter() - started

    searches = {f"all pairs of {size:,}": partial(seconds, size) for size in SIZES}
    times = alternate(num_rounds, **searches)
    return [
        row(f"JPEGs of CIFAR-10: {name}, one thread", values, "{:.1f} s")
        for name, values in times.items()
    ]


if __name__ == "__main__":
    command_line = parser(3)
    command_line.add_argument(
        "folder", type=Path, help="folder of 40,000 JPEGs, such as cifar/train"
    )
    arguments = command_line.parse_args()
    images = images_below(arguments.folder, max(SIZES))
    rows = rows_of("10,000 JPEGs of CIFAR-10", images[:10_000])
    rows += rows_of_search(images, arguments.rounds)
    publish("near-duplicates", rows, str(arguments.folder))

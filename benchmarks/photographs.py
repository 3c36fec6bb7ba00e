"""Measure images per second of epochs of photographs, without a network.

They are cropped at random to 224 pixels and mirrored.

    python -m benchmarks.photographs
    python -m benchmarks.photographs --differences

Lockstep from its cache and from files, and torchvision's ImageFolder, v2 transforms and DataLoader,
each with two processes. Every round measures each way once; a ratio is taken inside a round.
Processes are started before the clock. With --differences, in place of that: pixel values of JPEGs
that the decoder shrinks, next to complete ones.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.table import Row, alternate, parser, progress, publish, ratio_row
from lockstep.data.images.decoded_image import decode, pixels_of
from lockstep.data.images.preprocessing import Preprocessing
from lockstep.data.images.random_crop import RandomCrop
from lockstep.data.loader import ShardDataset, ShardLoader
from lockstep.data.prefetch import worker_settings
from lockstep.data.sampler import GlobalBatches
from lockstep.data.sources.folders import image_folder
from lockstep.data.splits import Images
from lockstep.data.transforms.augment import Augment

IMAGE_SIZE = 224
BATCH_SIZE = 32
NUM_WORKERS = 2
FLIP: dict[str, Any] = {
    **dict.fromkeys(
        ("crop_padding", "rotation", "cutout", "erasing", "mixup", "cutmix", "seed"), 0
    ),
    **dict.fromkeys(("vertical_flip", "trivial", "cutout_inside"), False),
    "flip": True,
    "crop_border": "zeros",
    "rand_augment": {"num_ops": 0, "magnitude": 9},
    "color_jitter": dict.fromkeys(("brightness", "contrast", "saturation", "hue"), 0),
    "fill": (120, 120, 120),
}
WAYS = {"cached": "from the cache", "files": "from files"}
AIMS = {"cached": ">= 3", "files": ">= 3"}
# The classes: a photograph takes seconds, its mirror images do not.
MIRRORED: dict[str, Callable[[Image.Image], Image.Image]] = {
    "upright": Image.Image.copy,
    "mirrored": ImageOps.mirror,
    "upside down": ImageOps.flip,
    "turned": lambda image: image.rotate(180),
}
# Number of photographs by the range of their shorter side in pixels.
COUNTS_BY_SIZE = {(400, 600): 400, (800, 2000): 200, (3000, 3000): 96}


def photograph(noise: np.random.Generator, height: int, width: int) -> Image.Image:
    """Return noise of all scales.

    A JPEG of quality 90 stores it in 0.3 bytes a pixel, as it does photographs.
    """
    longest = max(height, width)
    pixels, num_cells = np.full((2, 2, 3), 128.0, np.float32), 4
    while num_cells < 2 * longest:
        rows, columns = (
            min(length, max(2, num_cells * length // longest)) for length in (height, width)
        )
        planes = [Image.fromarray(plane.copy()) for plane in pixels.transpose(2, 0, 1)]
        scaled = [
            np.asarray(plane.resize((columns, rows), Image.Resampling.BICUBIC)) for plane in planes
        ]
        gray = noise.standard_normal((rows, columns, 1), np.float32)
        color = noise.standard_normal((rows, columns, 3), np.float32)
        strength = 60 * num_cells**-0.3 * (1 if num_cells < longest / 2 else 0.5)
        pixels = np.stack(scaled, 2) + strength * (gray + 0.35 * color)
        num_cells *= 2
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def generate(folder: Path, num_images: int, least: int = 800, most: int = 2000) -> None:
    """Write photographs of four classes, of the usual shapes, each with its mirror images.

    Their shorter side has `least` to `most` pixels.
    """
    noise = np.random.default_rng(0)
    for number in range(0, num_images, len(MIRRORED)):
        shortest = int(noise.integers(least, most + 1))
        longest = int(shortest * noise.choice([3 / 2, 4 / 3, 16 / 9, 1], p=[0.5, 0.3, 0.15, 0.05]))
        height, width = (shortest, longest) if noise.random() < 0.7 else (longest, shortest)
        image = photograph(noise, height, width)
        for name, mirrored in MIRRORED.items():
            path = folder / name / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            mirrored(image).save(path, quality=90)


def _read(root: Path, cache: str | None) -> Images:
    with contextlib.redirect_stdout(io.StringIO()):
        splits = image_folder(
            root=str(root),
            group=None,
            image_size=IMAGE_SIZE,
            crop_percent=1.0,
            fit="crop",
            interpolation="bilinear",
            channels=3,
            background="white",
            val_fraction=0.01,
            test_fraction=0.01,
            split_seed=0,
            test_after=None,
            cache=cache,
            memory="host" if cache else "stream",
        )
    return splits.train


def _rate(epoch: Callable[[], Iterator[int]]) -> float:
    started = time.perf_counter()
    count = sum(epoch())
    return count / (time.perf_counter() - started)


def _own(images: Images) -> Callable[[], float]:
    crop = RandomCrop(scale=(0.08, 1.0), ratio=(0.75, 1.3333), seed=0)
    batches = GlobalBatches(
        len(images),
        global_batch_size=BATCH_SIZE,
        accumulate_grad_batches=1,
        shuffle_seed=0,
        rank=0,
        worker_weights=[1],
        num_batches=None,
    )
    dataset = ShardDataset(images.pixels, images.targets, crop)
    loader = ShardLoader(dataset, batches, **worker_settings(NUM_WORKERS))
    augment = Augment(**FLIP)

    def epoch() -> Iterator[int]:
        for batch in loader:
            yield len(augment(batch).inputs)

    return partial(_rate, epoch)


def _usual(root: Path) -> Callable[[], float]:
    steps = [
        v2.RandomResizedCrop(IMAGE_SIZE, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
    ]
    loader = DataLoader(
        ImageFolder(str(root), v2.Compose(steps)),
        BATCH_SIZE,
        shuffle=True,
        num_workers=NUM_WORKERS,
        persistent_workers=True,
    )

    def epoch() -> Iterator[int]:
        for pixels, _ in loader:
            yield len(pixels)

    return partial(_rate, epoch)


def measure(root: Path, num_rounds: int, what: str) -> list[Row]:
    """Compare images/s of each way with those of torchvision."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as cache:
        ways = {
            "cached": _own(_read(root, cache)),
            "files": _own(_read(root, None)),
            "torchvision": _usual(root),
        }
        progress(f"{what}: filling the cache, starting processes")
        for way in ways.values():
            way()
        values = alternate(num_rounds, **ways)
    usual, form = values["torchvision"], "{:,.0f} images/s"
    return [
        ratio_row(f"{what}: {WAYS[name]} : torchvision", values[name], usual, form, aim=aim)
        for name, aim in AIMS.items()
    ]


def differences(root: Path) -> Iterator[str]:
    """Yield the mean and the 99th percentile of the differences for some sizes of the view."""
    for size in (32, 64, 128, 224):
        view, found = Preprocessing.from_keys(size, 1.0, "crop", "bilinear", "white"), []
        for path in sorted(root.rglob("*.jpg")):
            shrunk = decode(str(path), 3, view)
            with Image.open(path) as file:
                whole, _ = pixels_of(file, 3, "white")
            seen = view.crop(view.scale(shrunk.pixels, shrunk.size))
            found.append((seen.int() - view(whole).int()).abs().numpy())
        levels = np.stack(found)
        yield f"{size}: mean {levels.mean():.1f}, 99 % at most {np.quantile(levels, 0.99):.0f}"


def photographs(num_rounds: int) -> list[Row]:
    """Rows for folders of generated photographs."""
    rows: list[Row] = []
    for (least, most), num_images in COUNTS_BY_SIZE.items():
        with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
            sides = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            what = f"photographs of {sides}, cropped to {IMAGE_SIZE}"
            progress(f"{what}: writing {num_images}")
            generate(Path(scratch), num_images, least, most)
            rows += measure(Path(scratch), num_rounds, what)
    return rows


if __name__ == "__main__":
    command_line = parser(5)
    command_line.add_argument("--differences", action="store_true", help="show these instead")
    arguments = command_line.parse_args()
    if arguments.differences:
        with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
            generate(Path(scratch), 64)
            for line in differences(Path(scratch)):
                print(line, flush=True)
    else:
        publish("images", photographs(arguments.rounds))

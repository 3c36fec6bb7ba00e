"""Images per second of one epoch's input, without a network; the time to build a cache and to start from it.

    python -m benchmarks.input --root cifar     # a folder of class folders; without it, generated 32x32 JPEGs

One thread of torch. Every round measures each way once, in an order of its own, so that what else the machine does
meets all of them; a ratio is taken inside a round. Processes that read ahead are started before the clock.
"""

import argparse
import contextlib
import io
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.augmentations import OFF
from benchmarks.table import Row
from lockstep.data.images import decoded_image
from lockstep.data.images.random_crop import RandomCrop
from lockstep.data.loader import ShardDataset, ShardLoader
from lockstep.data.sampler import GlobalBatches
from lockstep.data.sources.folders import image_folder
from lockstep.data.splits import Images, Pixels
from lockstep.data.transforms.augment import Augment

IMAGE_SIZE = 32
BATCH_SIZE = 512
NUM_DECODED = 4096  # images an epoch of the ways that decode has
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
AIMS = {"mapped cache, crop, flip": ">= 300,000 images/s"}
USUAL = "torchvision ImageFolder, PIL transforms, DataLoader, 0 workers"


class CropByPillow(RandomCrop):
    """Has the process that crops decode all files by Pillow."""

    def __call__(self, pixels: Pixels, positions: Tensor, epoch: int, drawn_by: Tensor | None = None) -> Tensor:
        decoded_image.PLAIN.clear()
        return super().__call__(pixels, positions, epoch, drawn_by)


def measure(root: Path, *, num_rounds: int, num_builds: int) -> list[dict[str, Any]]:
    """Return a row for each way: what, unit, n, median, lowest, highest, and the ratio to the usual way or None."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        builds = [_seconds(partial(_read, root, f"{scratch}/{number}", "host")) for number in range(num_builds)]
        cache = f"{scratch}/0"
        ways = {
            "tensor in memory, crop, flip, normalise": _own(_read(root, None, "host")),
            "mapped cache, crop, flip, normalise": _own(_read(root, cache, "host")),
            "mapped cache, crop, flip": _own(_read(root, cache, "host"), is_normalised=False),
            "streamed by 1 process, crop, flip, normalise": _own(_head(_read(root, cache, "stream")), num_workers=1),
            "streamed by 2 processes, crop, flip, normalise": _own(_head(_read(root, cache, "stream")), num_workers=2),
            USUAL: _usual(root, 0),
            USUAL.replace("0", "2"): _usual(root, 2),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        starts = []
        order = list(ways)
        for way in ways.values():
            way()  # starts processes, reads pages
        for number in range(num_rounds):
            random.Random(number).shuffle(order)
            for name in order:
                rates[name].append(ways[name]())
            starts.append(_seconds(lambda: _read(root, cache, "host")))
    rows = [
        _row(name, "images/s", values, [rate / usual for rate, usual in zip(values, rates[USUAL], strict=True)])
        for name, values in rates.items()
    ]
    return [*rows, _row("build of the cache", "s", builds), _row("later start", "s", starts)]


def _row(what: str, unit: str, values: list[float], ratios: list[float] | None = None) -> dict[str, Any]:
    return {
        "what": what,
        "unit": unit,
        "n": len(values),
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
        "ratio": statistics.median(ratios) if ratios else None,
    }


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _read(root: Path, cache: str | None, memory: Literal["host", "stream"]) -> Images:
    with contextlib.redirect_stdout(io.StringIO()):
        splits = image_folder(
            root=str(root),
            group=None,
            image_size=IMAGE_SIZE,
            channels=3,
            crop_percent=1.0,
            fit="crop",
            interpolation="bilinear",
            background="white",
            val_fraction=0.1,
            test_fraction=0.1,
            split_seed=0,
            test_after=None,
            cache=cache,
            memory=memory,
            has_crops=False,
        )
    return splits.train


def _head(images: Images) -> Images:
    assert not isinstance(images.pixels, torch.Tensor)
    return Images(images.pixels.head(NUM_DECODED), images.targets[:NUM_DECODED], images.names[:NUM_DECODED])


def batches_of(images: Images, size: int) -> GlobalBatches:
    """Return the batches of one epoch of one worker."""
    return GlobalBatches(
        len(images),
        global_batch_size=size,
        accumulate_grad_batches=1,
        shuffle_seed=0,
        rank=0,
        loads=[1],
        num_batches=None,
    )


def _own(images: Images, *, num_workers: int = 0, is_normalised: bool = True) -> Callable[[], float]:
    loader = ShardLoader(
        ShardDataset(images.pixels, images.targets), batches_of(images, BATCH_SIZE), num_workers=num_workers
    )
    augment = Augment(**{**OFF, "crop_padding": 4, "flip": True})
    mean, std = (255 * torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))

    def epoch() -> Iterator[int]:
        for batch in loader:
            pixels = augment(batch).inputs
            if is_normalised:
                pixels = (pixels.float() - mean) / std
            yield len(pixels)

    return lambda: rate(epoch)


def _usual(root: Path, num_workers: int) -> Callable[[], float]:
    steps = [
        transforms.Resize(IMAGE_SIZE),
        transforms.CenterCrop(IMAGE_SIZE),
        transforms.RandomCrop(IMAGE_SIZE, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
    folder = root / "train" if (root / "train").is_dir() else root
    whole = ImageFolder(str(folder), transforms.Compose(steps))
    positions = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))[:NUM_DECODED]
    loader = DataLoader(
        torch.utils.data.Subset(whole, positions.tolist()),
        BATCH_SIZE,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )

    def epoch() -> Iterator[int]:
        for pixels, _ in loader:
            yield len(pixels)

    return lambda: rate(epoch)


def rate(epoch: Callable[[], Iterator[int]]) -> float:
    started = time.perf_counter()
    count = sum(epoch())
    return count / (time.perf_counter() - started)


def generate(folder: Path, num_images: int) -> None:
    """Write smooth 32x32 JPEGs of ten classes, about as large as photographs of that size."""
    noise = np.random.default_rng(0)
    for number in range(num_images):
        path = folder / f"class {number % 10}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(noise.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        coarse.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC).save(path, quality=90)


def table(rows: list[dict[str, Any]], title: str) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        title,
        "",
        "| what | n | median | lowest to highest | times the usual way |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        digits = 0 if row["unit"] == "images/s" else 3
        low, middle, high = (f"{row[key]:,.{digits}f}" for key in ("lowest", "median", "highest"))
        ratio = f"{row['ratio']:.1f}" if row["ratio"] is not None else ""
        lines.append(f"| {row['what']} | {row['n']} | {middle} {row['unit']} | {low} to {high} | {ratio} |")
    return "\n".join(lines)


def generated(num_images: int = 10_000) -> list[Row]:
    """Rows for a folder of generated JPEGs."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        generate(Path(scratch) / "images", num_images)
        ways = measure(Path(scratch) / "images", num_rounds=5, num_builds=3)
    rows = []
    for way in ways:
        form = f"{{:,.{0 if way['unit'] == 'images/s' else 3}f}} {way['unit']}"
        spread = f"{form.format(way['lowest'])} to {form.format(way['highest'])}"
        rows.append(Row(way["what"], form.format(way["median"]), spread, way["n"], AIMS.get(way["what"], "")))
    return rows


def main() -> None:
    """Measure all ways to read images and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of class folders, or of train/, val/ and test/ of them")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--builds", type=int, default=3)
    parser.add_argument("--images", type=int, default=10_000, help="to generate where no root is given")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        root = arguments.root or Path(scratch) / "images"
        if arguments.root is None:
            generate(root, arguments.images)
        load = os.getloadavg()[0]
        rows = measure(root, num_rounds=arguments.rounds, num_builds=arguments.builds)
        what = str(arguments.root) if arguments.root is not None else f"{arguments.images:,} generated JPEGs"
        title = (
            f"{what}; {date.today()}, {platform.machine()}, {os.cpu_count()} cores, load {load:.1f} before, "
            f"one thread, torch {torch.__version__}"
        )
    print(table(rows, title))


if __name__ == "__main__":
    main()

"""Inspect every image of a data source for errors, sizes and near-duplicates."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.data.images.dataset_samples import Samples
from lockstep.data.images.image_files import ImageFiles
from lockstep.data.images.preprocessing import Size, size_of
from lockstep.data.near_duplicates import Show, thumbnail
from lockstep.data.splits import ImageError, Images, Splits
from lockstep.system.hardware import num_cores


class InspectedImage(NamedTuple):
    """An inspected image, with the digest of its pixels, its errors and its thumbnail.

    `size` (H, W) is the size before the image is scaled. Near-duplicates are found by thumbnails.
    The thumbnail is None if the image is not compared. `target` (1, ...) is None for a sample that
    cannot be made.
    """

    digest: bytes
    size: Size | None
    errors: tuple[str, ...]
    thumbnail: Tensor | None
    target: Tensor | None


@dataclass(frozen=True)
class Inspection:
    """All images of a source by split, with the targets of those in `labeled_names`.

    Samples that cannot be made have no target.
    """

    splits: Splits
    images: dict[str, list[InspectedImage]]
    targets: dict[str, Tensor]
    labeled_names: dict[str, list[str]]

    @property
    def broken(self) -> list[str]:
        """Return the errors of the images that cannot be used, one line per file."""
        lines = [
            error
            for results in self.images.values()
            for result in results
            for error in result.errors
        ]
        return list(dict.fromkeys(lines))


def inspect(splits: Splits, show: Show, *, is_near: bool) -> Inspection:
    """Decode every file in threads, read every image in memory, or make every sample of a Dataset.

    `show` gets the number of images done and the number of all images. With `is_near`, thumbnails
    are made to find near-duplicates.
    """
    total = sum(map(len, splits.by_name.values()))
    inspection = Inspection(splits, {}, {}, {})
    num_done = 0
    for split, images in splits.by_name.items():
        inspection.images[split], inspection.labeled_names[split] = [], []
        targets = [images.targets[:0]]
        for name, result in zip(images.names, _inspect_images(images, is_near), strict=True):
            inspection.images[split].append(result)
            if result.target is not None:
                inspection.labeled_names[split].append(str(name))
                targets.append(result.target)
            num_done += 1
            show(num_done, total)
        inspection.targets[split] = torch.cat(targets)
    return inspection


def _inspect_images(images: Images, is_near: bool) -> Iterator[InspectedImage]:
    files, positions = images.pixels, torch.arange(len(images)).split(1)
    if not len(images):
        return  # An empty tensor splits into one part.
    if not isinstance(files, ImageFiles):
        yield from map(partial(_inspect, images, is_near), positions)
        return
    try:
        _ = files.shape
    # The first file, whose size all others must have, is broken. Any size is accepted then.
    except ImageError:
        files = replace(files, preprocessing=replace(files.preprocessing, size=(1, 1)))
    with files.threads(num_cores()) as threads:
        yield from threads.map(partial(_inspect, replace(images, pixels=files), is_near), positions)


def _inspect(images: Images, is_near: bool, position: Tensor) -> InspectedImage:
    """Inspect the image at `position` (1,)."""
    pixels = images.pixels
    target = None if isinstance(pixels, Samples) else images.targets[position]
    try:
        if isinstance(pixels, Samples):
            inputs, target = pixels.make(position, 0)
            image, size = inputs[0], size_of(inputs)
        elif isinstance(pixels, ImageFiles):
            image, size = pixels.decode(int(position))
        else:
            image = pixels[position][0]
            size = size_of(image)
    except ImageError as error:
        return InspectedImage(b"", None, tuple(error.errors), None, target)
    code = hashlib.blake2b(repr(image.shape).encode(), digest_size=16)
    code.update(image.contiguous().numpy().data)
    small = thumbnail(image) if is_near else None
    return InspectedImage(code.digest(), size, (), small, target)

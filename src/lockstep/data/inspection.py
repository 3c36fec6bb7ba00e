"""Inspect every image of a data source for errors, sizes and near-duplicates."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.data.images.dataset_samples import Samples
from lockstep.data.images.image_files import ImageFiles
from lockstep.data.images.preprocessing import size_of
from lockstep.data.near_duplicates import thumbnail
from lockstep.data.splits import ImageError, Images, Splits
from lockstep.system.hardware import num_cores


class InspectedImage(NamedTuple):
    """An inspected image, with the digest of its pixels, its errors and its thumbnail.

    `size` (H, W) is the size before the image is scaled. Near-duplicates are found by thumbnails.
    The thumbnail is None if the image is not compared.
    """

    digest: bytes
    size: tuple[int, int] | None
    errors: tuple[str, ...] = ()
    thumbnail: Tensor | None = None


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


def inspect(splits: Splits, show: Callable[[int, int], None], *, is_near: bool) -> Inspection:
    """Decode every file in threads, read every image in memory, or make every sample of a Dataset.

    `show` gets the number of images done and the number of all images. With `is_near`, thumbnails
    are made to find near-duplicates.
    """
    total = sum(map(len, splits.by_name.values()))
    inspection = Inspection(splits, {}, {}, {})
    num_done = 0
    for split, images in splits.by_name.items():
        results, targets = inspection.images.setdefault(split, []), [images.targets[:0]]
        labeled = inspection.labeled_names.setdefault(split, [])
        for name, (result, target) in zip(
            images.names, _inspect_images(images, is_near=is_near), strict=True
        ):
            results.append(result)
            labeled += [str(name)] * len(target)
            targets.append(target)
            num_done += 1
            show(num_done, total)
        inspection.targets[split] = torch.cat(targets)
    return inspection


def _inspect_images(images: Images, *, is_near: bool) -> Iterator[tuple[InspectedImage, Tensor]]:
    """Yield each image and its target (1, ...).

    The target is empty (0, ...) for a sample that cannot be made.
    """
    files = images.pixels
    if not len(images):
        return  # An empty tensor splits into one part.
    if isinstance(files, ImageFiles):
        try:
            _ = files.shape
        # The first file, whose size all others must have, is broken. Any size is accepted then.
        except ImageError:
            files = replace(files, preprocessing=replace(files.preprocessing, size=(1, 1)))
        with files.threads(num_cores()) as threads:
            results = threads.map(partial(_inspect_file, files, is_near), range(len(images)))
            yield from zip(results, images.targets.split(1), strict=True)
        return
    for position in torch.arange(len(images)).split(1):
        yield _inspect_pixels(images, is_near, position)


def _inspect_file(images: ImageFiles, is_near: bool, position: int) -> InspectedImage:
    try:
        pixels, size = images.decode(position)
    except ImageError as error:
        return InspectedImage(b"", None, tuple(error.errors))
    return InspectedImage(_digest(pixels), size, (), thumbnail(pixels) if is_near else None)


def _digest(pixels: Tensor) -> bytes:
    code = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=16)
    code.update(pixels.contiguous().numpy().data)
    return code.digest()


def _inspect_pixels(
    images: Images, is_near: bool, position: Tensor
) -> tuple[InspectedImage, Tensor]:
    pixels = images.pixels
    try:
        if isinstance(pixels, Samples):
            inputs, target = pixels.make(position, 0)
        else:
            inputs, target = pixels[position], images.targets[position]
    except ImageError as error:
        return InspectedImage(b"", None, tuple(error.errors)), images.targets[:0]
    image = inputs[0]
    return InspectedImage(
        _digest(image), size_of(image), thumbnail=thumbnail(image) if is_near else None
    ), target

"""Inspects every image of a data source: broken ones, duplicates, and sizes."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.data.images.decode import ImageError, check_size, decode, decoders, size_of
from lockstep.data.images.decoding import Decoding
from lockstep.data.images.samples import Samples
from lockstep.data.images.splits import Images, Splits
from lockstep.system.hardware import num_cores

Show = Callable[[int, int], None]  # of the number of images done, and of all


class Seen(NamedTuple):
    """One image: a digest of its file or pixels, its size (H, W) before it is scaled, and its errors."""

    digest: bytes
    size: tuple[int, int] | None
    errors: tuple[str, ...] = ()
    is_transparent: bool = False
    is_animated: bool = False


@dataclass(frozen=True)
class Inspection:
    """All images of a source, with their names and targets, by split."""

    seen: dict[str, Sequence[Seen]]
    names: dict[str, Sequence[str]]
    targets: dict[str, Tensor]
    class_names: tuple[str, ...]

    @property
    def broken(self) -> list[str]:
        """Errors of the images that cannot be used, one line per file."""
        lines = [error for seen in self.seen.values() for each in seen for error in each.errors]
        return list(dict.fromkeys(lines))

    def duplicates(self) -> list[list[tuple[str, str]]]:
        """Group identical readable images, each as (split, name)."""
        groups: dict[bytes, list[tuple[str, str]]] = {}
        for split, seen in self.seen.items():
            for each, name in zip(seen, self.names[split], strict=True):
                if not each.errors:
                    groups.setdefault(each.digest, []).append((split, name))
        return [group for group in groups.values() if len(group) > 1]


def inspect_files(decoding: Decoding, show: Show) -> Inspection:
    """Read and decode every file in threads."""
    table, files = decoding.table, decoding.files
    first = _first_size(decoding) if decoding.image_size is None else None
    seen: list[Seen] = []
    with decoders(len(files), table.num_bytes, num_cores()) as threads:
        for each in threads.map(lambda path: _inspect_file(path, decoding, first), files):
            seen.append(each)
            show(len(seen), len(files))
    return Inspection(
        {split: [seen[row] for row in rows] for split, rows in table.splits.items()},
        {split: [table.names[row] for row in rows] for split, rows in table.splits.items()},
        {split: torch.from_numpy(table.targets[rows]) for split, rows in table.splits.items()},
        table.class_names,
    )


def inspect_images(splits: Splits, show: Show) -> Inspection:
    """Read the pixels of every image in memory, or make every sample of a Dataset."""
    seen: dict[str, Sequence[Seen]] = {}
    targets: dict[str, Tensor] = {}
    total, num_before = sum(map(len, splits.parts.values())), 0
    for split, images in splits.parts.items():
        found: list[Seen] = []
        found_targets: list[Tensor] = [images.targets[:0]]
        for each, target in _inspect_pixels(images):
            found.append(each)
            found_targets.append(target)
            show(num_before + len(found), total)
        num_before += len(found)
        seen[split], targets[split] = found, torch.cat(found_targets)
    names = {split: images.names for split, images in splits.parts.items()}
    return Inspection(seen, names, targets, splits.class_names)


def _first_size(decoding: Decoding) -> tuple[int, int] | None:
    try:
        return decoding.size()
    except ImageError:
        return None  # reported with the other broken ones


def _inspect_file(path: str, decoding: Decoding, size: tuple[int, int] | None) -> Seen:
    try:
        digest = hashlib.blake2b(Path(path).read_bytes(), digest_size=16).digest()
    except OSError as error:
        return Seen(b"", None, (f"image {path} cannot be read ({error.strerror}): fix or delete it.",))
    try:
        image, is_transparent, is_animated = decode(path, decoding.channels, decoding.background)
        if size is not None:
            check_size(image, path, size, decoding.files[0])
    except ImageError as error:
        return Seen(digest, None, tuple(error.errors))
    return Seen(digest, size_of(image), (), is_transparent, is_animated)


def _inspect_pixels(images: Images) -> Iterator[tuple[Seen, Tensor]]:
    """Yield each image with its target (1, ...), or with an empty target if it cannot be made."""
    pixels, size = images.pixels, (images.pixels.shape[2], images.pixels.shape[3])
    for position in torch.arange(len(images)).split(1):
        try:
            if isinstance(pixels, Samples):
                inputs, target = pixels.made(position, 0)
            else:
                inputs, target = pixels[position], images.targets[position]
        except ImageError as error:
            yield Seen(b"", None, tuple(error.errors)), images.targets[:0]
            continue
        digest = hashlib.blake2b(inputs.contiguous().numpy().tobytes(), digest_size=16).digest()
        yield Seen(digest, size), target

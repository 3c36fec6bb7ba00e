"""Folders of images, with one folder per class."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Doc

from lockstep.data.images.decoded_splits import Decoding
from lockstep.data.images.image_files import ImageFiles
from lockstep.data.images.image_table import (
    IMAGE_SUFFIXES,
    SPLIT_FOLDERS,
    ImageTable,
    digest_of,
    list_classes,
    list_images,
    require_path,
    states_of,
)
from lockstep.data.images.preprocessing import View
from lockstep.data.splits import Fold, Images, Splits, cut_fold, name_draws, refuse_empty, rounded_sizes
from lockstep.system.kinds import (
    Background,
    Cache,
    Channels,
    CropPercent,
    Fit,
    Fraction,
    ImageSize,
    Interpolation,
    PathText,
    SplitSeed,
)


def image_folder(
    *,
    root: Annotated[PathText, Doc("folder of the images, or a URL such as s3://bucket/flowers or zip://::https://...")],
    image_size: ImageSize,
    channels: Channels,
    crop_percent: CropPercent,
    fit: Fit,
    interpolation: Interpolation,
    background: Background,
    val_fraction: Annotated[Fraction, Doc("fraction of the training images to use for validation")],
    test_fraction: Annotated[Fraction, Doc("fraction of the training images to use for the test")],
    split_seed: SplitSeed,
    cache: Cache,
    memory: Literal["auto", "device", "host", "stream", "once"],
    has_crops: bool,
    fold: Fold | None = None,
) -> Splits:
    """Image files in folders named after their classes, as uint8 (channels, height, width).

    Either `root/{train,val,test}/<class>/`, where a missing val or test is split from train by its fraction and
    `split_seed`, or `root/<class>/`, cut three ways. Images are scaled until they just cover
    `image_size` / `crop_percent`, and the centre is cropped; with `fit` "letterbox" they are scaled to fit inside and
    padded with `background`, on which transparent pixels are laid, too. An `image_size` of None needs images of one
    size. `channels` is 1 (grey) or 3 (RGB).

    Images are decoded once into a file below the folder `cache`, or into memory if it is None. With `memory` "stream"
    they are decoded whenever they are needed, with "auto" only if memory or disk is too small, and with "once", for an
    evaluation, if there is no such file; then statistics are not computed. With `has_crops` the file has the whole
    scaled images, which a training crops at random. A `fold` of the training images takes the place of the test. Raises
    FileNotFoundError for missing folders, and ValueError with all images that cannot be decoded or differ in size.
    """
    table = complete_splits(list_classes(root), val_fraction, test_fraction, split_seed, fold)
    view = View.from_keys(image_size, crop_percent, fit, interpolation, background)
    decoding = Decoding(table=table, view=view, channels=channels, cache=cache, is_scaled=has_crops)
    return decoding.splits(memory)


def complete_splits(
    table: ImageTable, val_fraction: float, test_fraction: float, split_seed: int, fold: Fold | None = None
) -> ImageTable:
    """Split missing parts from train by their fraction; with a `fold` of train, that is the test.

    If targets are classes, each split gets images of every class that is large enough.
    """
    groups = table.targets if table.targets.ndim == 1 else np.zeros(len(table.names), np.int64)
    if fold is not None:
        rows = table.splits["train"]
        parts = cut_fold([table.names[row] for row in rows], groups[rows], split_seed, fold)
        table = replace(table, splits=table.splits | {"train": rows[parts[0]], "test": rows[parts[1]]})
    fractions = {"val": val_fraction, "test": test_fraction}
    missing = {name: fraction for name, fraction in fractions.items() if name not in table.splits}
    for name, fraction in missing.items():
        if fraction == 0:
            hint = f"add images of it, or set data.{name}_fraction=0.1 to cut it off train"
            raise ValueError(f'{table.setting} has no split "{name}" and data.{name}_fraction=0: {hint}.')
    train = table.splits["train"]
    named = {f"{name}_fraction": fraction for name, fraction in missing.items()}
    cuts = cut_by_name([table.names[row] for row in train], groups[train], split_seed, named)
    parts = table.splits | {name: train[part] for name, part in zip([*missing, "train"], cuts, strict=True)}
    return replace(table, splits={name: parts[name] for name in SPLIT_FOLDERS})


def unlabelled_folder(root: str, *, view: View, channels: int) -> tuple[Images, str]:
    """List every image below a folder in sorted order, or one image file.

    Returns the images, which are not opened, and a digest of their files. The pixels of a file are the same as in
    training. Targets are -1.
    """
    if channels not in (1, 3):
        raise ValueError(f"data.channels={channels}, but images are decoded as grey (1) or RGB (3): use 1 or 3.")
    path = require_path(root, root)
    names = list_images(path) if path.is_dir() else [path.name]
    if not names:
        raise FileNotFoundError(f"{root} contains no image: looked for {', '.join(IMAGE_SUFFIXES)} in it and below.")
    folder = path if path.is_dir() else path.parent
    states, _ = states_of(folder, names)
    paths = [os.fsencode(f"{folder}/{name}") for name in names]
    mean_bytes = float(states[:, 0].mean())
    files = ImageFiles(np.array(paths), view, os.fsdecode(paths[0]), channels, mean_bytes)
    return Images(files, torch.full((len(names),), -1), names), digest_of(names, states)


def cut_by_name(
    names: Sequence[str], groups: NDArray[Any], seed: int, fractions: dict[str, float]
) -> list[NDArray[np.int64]]:
    """Cut positions into a part for each fraction, and the rest; each sorted. Raises ValueError if a part is empty.

    The part of a name depends only on a hash of it and `seed`, so that added or removed names move no other. An
    exception is a group, the names with one value in `groups` (N,), without a name in a part: the nearest name is moved
    there, if the group is large enough.
    """
    rounded_sizes(len(names), fractions)
    draws = name_draws(names, seed)
    rest = len(fractions)
    parts = np.searchsorted(np.cumsum(list(fractions.values())), draws, side="right")
    by_group = np.lexsort((draws, groups))
    for rows in np.split(by_group, np.flatnonzero(np.diff(groups[by_group])) + 1):
        sizes = np.bincount(parts[rows], minlength=rest + 1)
        for part in (rest, *range(rest)):
            if not sizes[part] and (part == rest or sizes.max() > 1):
                sizes[sizes.argmax()] -= 1
                sizes[part] = 1
        parts[rows] = np.repeat(np.arange(rest + 1), sizes)
    refuse_empty(len(names), fractions, np.bincount(parts, minlength=rest + 1).tolist())
    return [np.flatnonzero(parts == part) for part in range(rest + 1)]

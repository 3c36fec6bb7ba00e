"""Provide the images of folders that have one subfolder per class."""

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from typing import Annotated, Literal

import numpy as np
import torch
from PIL import ExifTags
from typing_extensions import Doc

from lockstep.data.images.decoded_image import open_image
from lockstep.data.images.decoded_splits import Decoding
from lockstep.data.images.image_files import files_below
from lockstep.data.images.image_table import (
    SPLIT_FOLDERS,
    ImageTable,
    digest_of,
    image_suffixes,
    list_classes,
    list_images,
    real_names,
    require_path,
    states_of,
)
from lockstep.data.images.preprocessing import Preprocessing
from lockstep.data.splits import Fold, Images, Kept, Splits, shorten_lines
from lockstep.data.splitting import Mask, Rows, Unsplit, split_images
from lockstep.system.hardware import num_cores
from lockstep.system.types import (
    Background,
    Cache,
    Channels,
    CropPercent,
    Fit,
    Fraction,
    Group,
    ImageSize,
    Interpolation,
    PathText,
    Positive,
    SplitSeed,
    TestAfter,
)

TAKEN = (ExifTags.IFD.Exif, ExifTags.Base.DateTimeOriginal)


def image_folder(
    *,
    root: Annotated[
        PathText,
        Doc("folder of the images, or a URL such as s3://bucket/flowers or zip://::https://..."),
    ],
    group: Annotated[
        Group | Positive | None,
        Doc(
            "images kept in one split: a regular expression for CLASS/... with the group in (...), "
            "or a number of folders below the class"
        ),
    ],
    image_size: ImageSize,
    channels: Channels,
    crop_percent: CropPercent,
    fit: Fit,
    interpolation: Interpolation,
    background: Background,
    val_fraction: Annotated[Fraction, Doc("fraction of the training images to use for validation")],
    test_fraction: Annotated[Fraction, Doc("fraction of the training images to use for the test")],
    split_seed: SplitSeed,
    test_after: TestAfter,
    cache: Cache,
    memory: Literal["auto", "device", "host", "stream", "once"],
    fold: Fold | None = None,
    kept: Kept = None,
) -> Splits:
    """Load image files in folders named after their classes, as uint8 (channels, height, width).

    With folders `root/{train,val,test}/<class>/`, a missing val or test is split from train by its
    fraction and `split_seed`. With folders `root/<class>/`, all images are split three ways. Images
    of one `group` stay in one split. A regular expression groups the images with the same first
    bracket in `<class>/...`. A number groups the images in the same folder, that many levels below
    their class.

    Images are scaled until they just cover `image_size` / `crop_percent`, and the center is
    cropped. With `fit` "letterbox", they are scaled to fit inside, and padded with `background`.
    Transparent pixels are composited on `background`, too. An `image_size` of None needs images of
    one size. `channels` is 1 (grayscale) or 3 (RGB).

    Images are decoded once into a file below the folder `cache`, or into memory if it is None. With
    `memory` "stream", they are decoded whenever they are needed. With "auto", this happens only if
    memory is too small. With "once", for an evaluation, it happens only if there is no such file,
    and statistics are not computed. A `fold` of the training images takes the place of the test.
    `kept` maps names of images to their earlier splits, in which they stay. Raises
    FileNotFoundError for missing folders, and ValueError with all images that cannot be decoded or
    differ in size.
    """
    table = complete_splits(
        list_classes(root, group), val_fraction, test_fraction, split_seed, test_after, fold, kept
    )
    preprocessing = Preprocessing.from_keys(
        image_size, crop_percent, fit, interpolation, background
    )
    return Decoding(table, preprocessing, channels, cache).splits(memory)


def complete_splits(
    table: ImageTable,
    val_fraction: float,
    test_fraction: float,
    split_seed: int,
    test_after: str | None,
    fold: Fold | None = None,
    kept: Kept = None,
) -> ImageTable:
    """Split missing splits from train by their fractions.

    A `fold` of train, or the images from `test_after` on, become the test. `kept` maps the names of
    images to their earlier splits, in which they stay. Paths and links that lead to one file are
    one image. If targets are classes, each split gets images of every class that is large
    enough. Raises ValueError if splits are missing or ambiguous.
    """
    files = real_names(table.folder, table.names, table.states)
    _refuse_two_groups(table, files)
    splits = {**table.splits}
    if fold is not None:
        splits.pop("test", None)
    train = splits["train"]
    if test_after is not None and (fold is not None or "test" in splits):
        test_source = "data.folds" if fold is not None else f'the split "test" of {table.setting}'
        raise ValueError(
            f"data.test_after={test_after} makes a test split, and so does {test_source}: "
            "use one of them."
        )
    real_table = replace(table, names=files)
    test_split = fold if test_after is None else newest(real_table, train, test_after)
    fractions = {"val": val_fraction, "test": test_fraction}
    for split in splits:
        fractions.pop(split, None)
    if fractions.get("test") == 0 and test_split is None:
        raise ValueError(
            f'{table.setting} has no split "test" and data.test_fraction=0: '
            "add images of it, or set data.test_fraction=0.1 to split it from train."
        )
    classes = table.targets if table.targets.ndim == 1 else np.zeros(len(table.names), np.int64)
    images = Unsplit(files, classes, split_seed, table.groups, kept).take(train)
    rows = split_images(images, fractions, test_split)
    splits |= {split: train[rows[split]] for split in rows}
    return replace(table, splits={split: splits[split] for split in SPLIT_FOLDERS})


def newest(table: ImageTable, rows: Rows, test_after: str) -> Mask:
    """Return which of the images `rows` (n,) date from the day `test_after` or later.

    Images of a group with such an image are included. Raises ValueError if none or all images are
    selected, and for images without a date.
    """
    setting = f"data.test_after={test_after}"

    def read(row: int) -> str:
        if table.dates is not None:
            return table.dates[row]
        # A damaged file and damaged EXIF data can raise any error.
        with (
            contextlib.suppress(Exception),
            open_image(f"{table.folder}/{table.names[row]}") as image,
        ):
            return str(image.getexif().get_ifd(TAKEN[0]).get(TAKEN[1], ""))
        return ""

    days, lines = [], []
    with ThreadPoolExecutor(num_cores()) as threads:
        for row, timestamp in zip(rows, threads.map(read, rows.tolist()), strict=True):
            try:
                days.append(date.fromisoformat(timestamp[:10].replace(":", "-")))
            except ValueError:
                lines.append(
                    f"{setting}: {table.names[row]} has no date, but {timestamp!r}: "
                    "add it, or move it elsewhere."
                )
    if lines:
        raise ValueError(shorten_lines(lines))
    is_new = np.array(days) >= date.fromisoformat(test_after)
    units = np.array(table.names if table.groups is None else table.groups)[rows]
    is_new = np.isin(units, units[is_new])
    if is_new.all() and str(min(days)) < test_after <= str(max(days)):
        raise ValueError(f"{setting}: every group has such an image: choose a later day.")
    if is_new.all() or not is_new.any():
        raise ValueError(
            f"{setting}: the images are of {min(days)} to {max(days)}: choose a day between."
        )
    return is_new


def _refuse_two_groups(table: ImageTable, files: Sequence[str]) -> None:
    """Raise ValueError if paths or links that lead to one of the `files` differ in group."""
    first_images = {}
    for file, name, group in zip(files, table.names, table.groups or files, strict=True):
        first_name, first_group = first_images.setdefault(file, (name, group))
        if group != first_group:
            raise ValueError(
                f"{table.setting}: {first_name} and {name} are one image, but in the groups "
                f"{first_group!r} and {group!r}: remove one of them, or give both the same "
                "group."
            )


def unlabeled_folder(
    root: str, *, preprocessing: Preprocessing, channels: int
) -> tuple[Images, str]:
    """List every image below a folder in sorted order, or a single image file.

    Returns the images, which are not opened, and a digest of their files. The pixels of a file are
    the same as in training. The targets are -1. Raises FileNotFoundError without an image, and
    ValueError unless `channels` is 1 or 3.
    """
    if channels not in (1, 3):
        raise ValueError(
            f"data.channels={channels}, but images are decoded as grayscale or RGB: use 1 or 3."
        )
    path = require_path(root, root)
    names = list_images(path) if path.is_dir() else [path.name]
    if not names:
        raise FileNotFoundError(
            f"{root} contains no image: looked for {', '.join(image_suffixes())} in it and below."
        )
    folder = path if path.is_dir() else path.parent
    states, _ = states_of(folder, names)
    files = files_below(folder, names, states, preprocessing, channels)
    return Images(files, torch.full((len(names),), -1), names), digest_of(names, states)

"""Folders of images, with a folder for each class."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from typing_extensions import Doc

from lockstep.data.images.decode import ImageError, check_channels, decode_all, decoders
from lockstep.data.images.decoding import Decoding, into, print_animated, room_for
from lockstep.data.images.listing import (
    IMAGE_SUFFIXES,
    SPLIT_FOLDERS,
    ImageTable,
    existing,
    list_classes,
    list_images,
)
from lockstep.data.images.splits import Images, Splits, cut_by_name
from lockstep.system.kinds import Background, Cache, Channels, Fraction, ImageSize, PathText, SplitSeed


def image_folder(
    *,
    root: Annotated[PathText, Doc("folder of the images, or a URL as s3://bucket/flowers or zip://::https://...")],
    image_size: ImageSize,
    channels: Channels,
    background: Background,
    val_fraction: Annotated[Fraction, Doc("part of the training images kept for validation")],
    test_fraction: Annotated[Fraction, Doc("part of the training images kept for the test")],
    split_seed: SplitSeed,
    cache: Cache,
    memory: Literal["auto", "device", "host", "stream"],
) -> Splits:
    """Image files in folders named after their classes, as uint8 (channels, image_size, image_size).

    Either `root/{train,val,test}/<class>/`, where val and test may be missing and are then cut off train by their
    fraction and `split_seed`, or `root/<class>/`, cut three ways. A folder wins over its fraction. `image_size` in
    pixels scales the shorter side and crops the centre; None takes images that all have one size. `channels` is 1
    (grey) or 3 (RGB). Transparent pixels are laid on `background`, a colour of PIL.ImageColor.

    Images are decoded once into a file below the folder `cache`, or into memory where it is None, or with `memory`
    "stream" whenever one is needed; "auto" streams what memory or disk cannot hold. Raises FileNotFoundError where
    folders or images are missing, and ValueError that names images which cannot be decoded or differ in size.
    """
    table = folder_table(root=root, val_fraction=val_fraction, test_fraction=test_fraction, split_seed=split_seed)
    decoding = Decoding(table=table, image_size=image_size, channels=channels, background=background, cache=cache)
    return decoding.splits(memory)


def folder_table(*, root: str, val_fraction: float, test_fraction: float, split_seed: int) -> ImageTable:
    """The image files that `image_folder` gives, before one of them is opened."""
    absent = 'has no folder "{name}" and data.{name}_fraction=0: add {name}/ with one folder per class'
    return cut_missing(list_classes(root), absent, val_fraction, test_fraction, split_seed)


def cut_missing(
    table: ImageTable, absent: str, val_fraction: float, test_fraction: float, split_seed: int
) -> ImageTable:
    """The table with train, val and test; those it lacks are cut off train by their fraction.

    Where targets are classes, each split gets images of every class that is large enough. `absent` is the error of a
    split that is neither there nor cut.
    """
    fractions = {"val": val_fraction, "test": test_fraction}
    missing = {name: fraction for name, fraction in fractions.items() if name not in table.splits}
    for name, fraction in missing.items():
        if fraction == 0:
            problem = absent.format(name=name)
            raise ValueError(f"{table.setting} {problem}, or set data.{name}_fraction=0.1 to cut it off train.")
    train = table.splits["train"]
    groups = table.targets[train] if table.targets.ndim == 1 else np.zeros(len(train), np.int64)
    cuts = cut_by_name(
        [table.names[row] for row in train],
        torch.from_numpy(groups),
        split_seed,
        {f"{name}_fraction": fraction for name, fraction in missing.items()},
    )
    parts = table.splits | {name: train[part.numpy()] for name, part in zip([*missing, "train"], cuts, strict=True)}
    return replace(table, splits={name: parts[name] for name in SPLIT_FOLDERS})


def unlabelled_folder(
    root: str, *, image_size: tuple[int, int], channels: int, background: str, broken: list[str] | None = None
) -> Images:
    """Read every image below a folder in sorted order, or one image file, scaled and cropped to `image_size` (H, W).

    The geometry is that of `image_folder`: a model sees the same pixels of a file in training and here. Labels are -1.
    Images that cannot be read are left out, with a line for each in `broken`. Raises ImageError where that is not
    given, or none can be read.
    """
    check_channels(channels)
    path = existing(root, root)
    names = list_images(path) if path.is_dir() else [path.name]
    if not names:
        raise FileNotFoundError(f"{root} holds no image: looked for {', '.join(IMAGE_SUFFIXES)} in it and below.")
    folder = path if path.is_dir() else path.parent
    files = [f"{folder}/{name}" for name in names]
    num_bytes = sum(Path(file).stat().st_size for file in files)
    pixels = room_for(root, (len(files), channels, *image_size))
    try:
        num_animated = decode_all(
            files,
            pixels.shape,
            background=background,
            same_size=False,
            threads=decoders(len(files), num_bytes, torch.get_num_threads()),
            store=into(pixels),
        )
        print_animated(root, num_animated)
    except ImageError as error:
        kept = sorted(set(range(len(files))) - set(error.positions))
        if broken is None or not kept:
            raise
        broken += error.errors
        names, pixels = [names[row] for row in kept], pixels[kept]
    return Images(pixels, torch.full((len(names),), -1), names)

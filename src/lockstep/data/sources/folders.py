"""Folders of images, with one folder per class."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from typing_extensions import Doc

from lockstep.data.images.decode import ImageError, decode_all, decoders
from lockstep.data.images.decoding import Decoding, allocated, store_in
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

    Either `root/{train,val,test}/<class>/`, where a missing val or test is cut off train by its fraction and
    `split_seed`, or `root/<class>/`, cut three ways. `image_size` in pixels scales the shorter side and crops the
    centre; None needs images of one size. `channels` is 1 (grey) or 3 (RGB). Transparent pixels are laid on
    `background`, a colour of PIL.ImageColor.

    Images are decoded once into a file below the folder `cache`, or into memory if it is None. With `memory` "stream"
    they are decoded whenever they are needed, with "auto" only if memory or disk is too small. Raises FileNotFoundError
    for missing folders, and ValueError with all images that cannot be decoded or differ in size.
    """
    table = folder_table(root=root, val_fraction=val_fraction, test_fraction=test_fraction, split_seed=split_seed)
    decoding = Decoding(table=table, image_size=image_size, channels=channels, background=background, cache=cache)
    return decoding.splits(memory)


def folder_table(*, root: str, val_fraction: float, test_fraction: float, split_seed: int) -> ImageTable:
    """List the image files of `image_folder` without opening them."""
    absent = 'has no folder "{name}" and data.{name}_fraction=0: add {name}/ with one folder per class'
    return cut_missing(list_classes(root), absent, val_fraction, test_fraction, split_seed)


def cut_missing(
    table: ImageTable, absent: str, val_fraction: float, test_fraction: float, split_seed: int
) -> ImageTable:
    """Cut missing splits off train by their fraction.

    If targets are classes, each split gets images of every class that is large enough. `absent` is the message for a
    missing split with fraction 0.
    """
    fractions = {"val": val_fraction, "test": test_fraction}
    missing = {name: fraction for name, fraction in fractions.items() if name not in table.splits}
    for name, fraction in missing.items():
        if fraction == 0:
            message = f"{table.setting} {absent.format(name=name)}"
            raise ValueError(f"{message}, or set data.{name}_fraction=0.1 to cut it off train.")
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

    The pixels of a file are the same as in training. Targets are -1. Images that cannot be read are skipped, and
    `broken` gets a line for each. Raises ImageError if `broken` is None, or if no image can be read.
    """
    if channels not in (1, 3):
        raise ValueError(f"data.channels={channels}, but images are decoded as grey (1) or RGB (3): use 1 or 3.")
    path = existing(root, root)
    names = list_images(path) if path.is_dir() else [path.name]
    if not names:
        raise FileNotFoundError(f"{root} contains no image: looked for {', '.join(IMAGE_SUFFIXES)} in it and below.")
    folder = path if path.is_dir() else path.parent
    files = [f"{folder}/{name}" for name in names]
    num_bytes = sum(Path(file).stat().st_size for file in files)
    pixels = allocated(root, (len(files), channels, *image_size))
    try:
        decode_all(
            files,
            pixels.shape,
            background=background,
            same_size=False,
            threads=decoders(len(files), num_bytes, torch.get_num_threads()),
            store=store_in(pixels),
        )
    except ImageError as error:
        kept = sorted(set(range(len(files))) - set(error.positions))
        if broken is None or not kept:
            raise
        broken += error.errors
        names, pixels = [names[row] for row in kept], pixels[kept]
    return Images(pixels, torch.full((len(names),), -1), names)

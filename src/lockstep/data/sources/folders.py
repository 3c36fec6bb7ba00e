"""Folders of images: decoded once into a cache, into memory, or whenever an image is needed."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Doc

from lockstep.data.images import cache as caches
from lockstep.data.images.cache import Entry, NoSpace
from lockstep.data.images.decode import (
    NUM_PER_RUN,
    ImageFault,
    check_channels,
    decode,
    decode_all,
    size_of,
    useful_threads,
)
from lockstep.data.images.listing import (
    IMAGE_SUFFIXES,
    SPLIT_FOLDERS,
    FileListing,
    Names,
    existing,
    list_classes,
    list_images,
)
from lockstep.data.images.pixels import ImageFiles, Pixels, Rows
from lockstep.data.images.splits import Images, Splits, cut_by_name
from lockstep.data.images.statistics import Statistics, channel_statistics, sampled_positions, value_counts
from lockstep.data.transfer.file_lock import Progress
from lockstep.system.hardware import available_bytes, num_cores
from lockstep.system.kinds import Background, Cache, Channels, Fraction, ImageSize, PathText, SplitSeed
from lockstep.system.wording import plural

ANIMATED = "animated"  # the note in a cache of how many files are


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
    started = time.perf_counter()
    settings = FileSettings(
        image_size=image_size,
        channels=channels,
        background=background,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        split_seed=split_seed,
        cache=cache,
    )
    return folder_contents(root=root, settings=settings).splits(memory, started)


def folder_contents(*, root: str, settings: "FileSettings") -> "Contents":
    """The image files that `image_folder` gives, before one of them is opened."""
    listing = list_classes(root)

    def lacks(name: str) -> tuple[str, str]:
        return f'data.root={root} has no folder "{name}"', f"add {name}/ with one folder per class"

    parts = {name: torch.arange(part.start, part.stop) for name, part in listing.parts.items()}
    labels = torch.from_numpy(listing.labels)
    positions = settings.cut(parts, listing.names, labels, lacks)
    return Contents(settings.folder(f"data.root={root}", listing), positions, labels, listing.class_names)


def unlabelled_folder(
    root: str, *, image_size: tuple[int, int], channels: int, background: str, broken: list[str] | None = None
) -> Images:
    """Read every image below a folder in sorted order, or one image file, scaled and cropped to `image_size` (H, W).

    The geometry is that of `image_folder`: a model sees the same pixels of a file in training and here. Labels are -1.
    Images that cannot be read are left out, with a line for each in `broken`. Raises ImageFault where that is not
    given, or none can be read.
    """
    check_channels(channels)
    path = existing(root, root)
    names = list_images(path) if path.is_dir() else Names.of([path.name])
    if not names:
        raise FileNotFoundError(f"{root} holds no image: looked for {', '.join(IMAGE_SUFFIXES)} in it and below.")
    files = names.below(path if path.is_dir() else path.parent)
    num_bytes = sum(Path(file).stat().st_size for file in files)
    pixels, fault = _decoded(root, files, image_size, channels, background, num_bytes, same_size=False)
    if fault is not None:
        kept = np.setdiff1d(np.arange(len(files)), fault.positions)
        if broken is None or not len(kept):
            raise fault
        broken += fault.faults
        names, pixels = names.select(kept), pixels[kept]
    return Images(pixels, torch.full((len(names),), -1), names)


@dataclass(frozen=True)
class Folder:
    """A folder of images and how they are decoded; `setting` names it in messages, such as data.root=images."""

    setting: str
    listing: FileListing
    image_size: int | None
    channels: int
    background: str
    cache: str | None

    @property
    def files(self) -> Names:
        """The paths of the images."""
        return self.listing.names.below(self.listing.folder)

    @property
    def entry(self) -> Entry:
        """The place of the decoded images in the cache."""
        assert self.cache is not None
        return caches.entry(
            self.cache,
            self.listing,
            image_size=self.image_size,
            channels=self.channels,
            background=self.background,
        )

    def size(self) -> tuple[int, int]:
        """(H, W) of every image: with image_size=null those of the first one."""
        if self.image_size is not None:
            return self.image_size, self.image_size
        return size_of(decode(self.files[0], self.channels, self.background).pixels)

    def decoded(self) -> caches.Pixels:
        """The images from the cache, decoded by this process or by another one that was first.

        Raises ImageFault that names every broken image, NoSpace, or ValueError where the cache cannot be written.
        """
        entry, what = self.entry, self.listing.folder.name
        with entry.locked(what):
            table = entry.opened()
            if table is not None:
                return table
            shape = (len(self.files), self.channels, *self.size())
            entry.check_space(int(np.prod(shape)))
            progress = Progress(f"Decoding {what}", "images")
            try:
                with entry.building(shape) as write:
                    num_animated = decode_all(
                        self.files,
                        self.channels,
                        (shape[2], shape[3]),
                        background=self.background,
                        same_size=self.image_size is None,
                        # the other processes of this machine wait
                        num_threads=useful_threads(shape[0], self.listing.num_bytes, num_cores()),
                        store=lambda start, block: write(start, block.numpy()),
                        show=lambda num_done: progress.show(num_done, shape[0]),
                    )
            finally:
                progress.end()
            if num_animated:
                entry.write_note(ANIMATED, str(num_animated))
            print(
                f"Decoded {plural(shape[0], 'image')} of {what} in {progress.elapsed_s:.1f} s, "
                f"{shape[0] / progress.elapsed_s:,.0f} images/s, into {entry.path} ({size_text(int(np.prod(shape)))})",
                flush=True,
            )
            table = entry.opened()
            assert table is not None
            return table

    def statistics(self, pixels: Tensor | Pixels, positions: Tensor) -> Statistics:
        """Mean and deviation of at most 4,096 of the training images `pixels`, which stand at `positions`.

        The same wherever the pixels are, so that a run can go on on a machine with less memory. Noted in the cache.
        """
        sample = sampled_positions(len(positions))
        code = hashlib.blake2b(positions[sample].numpy().tobytes(), digest_size=8).hexdigest()
        note = f"statistics-{code}.json"
        text = self.entry.read_note(note) if self.cache is not None else None
        if text is not None:
            mean, std = json.loads(text)
            return Statistics(tuple(mean), tuple(std))
        num_threads = useful_threads(len(self.files), self.listing.num_bytes, num_cores())
        with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            runs = pool.map(lambda run: value_counts(pixels[run]), sample.split(NUM_PER_RUN))
            statistics = channel_statistics(torch.stack(list(runs)).sum(0))
        if self.cache is not None:
            self.entry.write_note(note, json.dumps(statistics))
        return statistics


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """How image files are decoded and cut into splits: the settings of every source of them, as in `image_folder`."""

    image_size: int | None
    channels: int
    background: Background
    val_fraction: float
    test_fraction: float
    split_seed: int
    cache: str | None

    def __post_init__(self) -> None:
        check_channels(self.channels)

    def folder(self, setting: str, listing: FileListing) -> Folder:
        """The files of a listing; `setting` names them in messages."""
        return Folder(setting, listing, self.image_size, self.channels, self.background, self.cache)

    def cut(
        self, parts: Mapping[str, Tensor], names: Sequence[str], groups: Tensor, lacks: Callable[[str], tuple[str, str]]
    ) -> dict[str, Tensor]:
        """Positions of train, val and test; a split that is not in `parts` is cut off train by its fraction.

        It has images of every group, such as a class, that is large enough: `groups` (N,) are those of all `names`.
        `lacks` says of a split what is missing, and how it is added.
        """
        positions = dict(parts)
        fractions = {"val": self.val_fraction, "test": self.test_fraction}
        missing = {name: fraction for name, fraction in fractions.items() if name not in positions}
        for name, fraction in missing.items():
            if fraction == 0:
                what, cure = lacks(name)
                raise ValueError(
                    f"{what} and data.{name}_fraction=0: {cure}, or set data.{name}_fraction=0.1 to cut it off train."
                )
        everything = positions["train"]
        cuts = cut_by_name(
            [str(names[position]) for position in everything.tolist()],
            groups[everything],
            self.split_seed,
            {f"{name}_fraction": fraction for name, fraction in missing.items()},
        )
        for name, part in zip([*missing, "train"], cuts, strict=True):
            positions[name] = everything[part]
        return {name: positions[name] for name in SPLIT_FOLDERS}


@dataclass(frozen=True, eq=False)
class Contents:
    """Image files with their targets (N, ...), and the positions of each split among them."""

    folder: Folder
    positions: dict[str, Tensor]
    targets: Tensor
    class_names: tuple[str, ...]

    def splits(self, memory: str, started: float) -> Splits:
        """The images where `memory` wants them; `started` is when the work on them began."""
        places = list(self.positions.values())
        pixels = _pixels(self.folder, places, memory, started)
        train, val, test = (
            Images(part, self.targets[rows], self.folder.listing.names.select(rows.numpy()))
            for part, rows in zip(pixels, places, strict=True)
        )
        return Splits(train, val, test, self.class_names, self.folder.statistics(train.pixels, places[0]))


def _pixels(folder: Folder, positions: Sequence[Tensor], memory: str, started: float) -> Sequence[Tensor | Pixels]:
    """The images at each of `positions` of the listing, where `memory` wants them and there is room."""
    reason = streaming_reason(folder, memory)
    if reason:
        return _streamed(folder, positions, reason)
    if folder.cache is None:
        return _in_memory(folder, positions)
    origin = str(folder.entry.place)
    table = folder.entry.opened()
    if table is not None:
        origin += f", opened in {time.perf_counter() - started:.2f} s"
    else:
        try:
            table = folder.decoded()
        except NoSpace as error:
            if memory != "auto":
                raise
            return _streamed(folder, positions, str(error).partition(":")[0])
    _tell_animated(folder.setting, int(folder.entry.read_note(ANIMATED) or 0))
    whole = torch.from_numpy(table)
    return [Rows(whole, places, origin) for places in positions]


def _streamed(folder: Folder, positions: Sequence[Tensor], reason: str) -> list[ImageFiles]:
    first = folder.files[0] if folder.image_size is None else ""
    size = folder.size()
    return [
        ImageFiles(folder.files.select(places.numpy()), size, folder.channels, folder.background, first, reason)
        for places in positions
    ]


def _in_memory(folder: Folder, positions: Sequence[Tensor]) -> Sequence[Tensor]:
    """One tensor and views of it, so that one message names every broken image."""
    files = folder.files.select(torch.cat(list(positions)).numpy())
    is_one_size, num_bytes = folder.image_size is None, folder.listing.num_bytes
    pixels, fault = _decoded(
        folder.setting, files, folder.size(), folder.channels, folder.background, num_bytes, same_size=is_one_size
    )
    if fault is not None:
        raise fault
    return pixels.split([len(places) for places in positions])


def streaming_reason(folder: Folder, memory: str) -> str:
    """Why images are decoded when they are needed: `memory` says so, or has no room for them; empty where it has."""
    if memory != "auto":
        return "as asked" if memory == "stream" else ""
    height, width = folder.size()
    needed, available = len(folder.files) * folder.channels * height * width, available_bytes()
    if available is None or needed <= available:
        return ""
    return f"decoded {size_text(needed)}, {size_text(available)} of memory free"


def _decoded(
    setting: str,
    files: Names,
    size: tuple[int, int],
    channels: int,
    background: str,
    num_bytes: int,
    *,
    same_size: bool,
) -> tuple[Tensor, ImageFault | None]:
    """Decode `files`, `num_bytes` in all, into one tensor (N, C, H, W); those that the fault names have no pixels."""
    _check_memory(setting, len(files) * channels * size[0] * size[1])
    pixels = torch.empty(len(files), channels, *size, dtype=torch.uint8)

    def store(start: int, block: Tensor) -> None:
        pixels[start : start + len(block)] = block

    try:
        num_animated = decode_all(
            files,
            channels,
            size,
            background=background,
            same_size=same_size,
            # every rank decodes for itself
            num_threads=useful_threads(len(files), num_bytes, torch.get_num_threads()),
            store=store,
            show=lambda num_done: None,
        )
    except ImageFault as error:
        return pixels, error
    _tell_animated(setting, num_animated)
    return pixels, None


def _tell_animated(setting: str, count: int) -> None:
    if count:
        print(f"{setting}: {count:,} animated, of which the first frame is used", flush=True)


def size_text(num_bytes: int) -> str:
    """Bytes as MiB or GiB."""
    unit, name = (2**30, "GiB") if num_bytes >= 2**30 else (2**20, "MiB")
    return f"{num_bytes / unit:.1f} {name}"


def _check_memory(setting: str, needed: int) -> None:
    available = available_bytes()
    if available is not None and needed > available:
        raise ValueError(
            f"{setting} needs {needed / 2**30:.1f} GiB of memory when decoded, but this machine has "
            f"{available / 2**30:.1f} GiB left: set a smaller data.image_size, give fewer images, or train with "
            "data.memory=stream."
        )

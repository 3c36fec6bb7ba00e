"""Image files as splits of pixels: decoded once into a cache or into memory, or whenever they are read.

A table of images has a folder `<cache>/<name>-<channels>x<size>-<hash>/` with `<digest of the files>.npy`, uint8
(N, C, H, W), which every process maps into memory, `<digest>.json`, their statistics, and `.lock`, held by the process
that decodes. The kernel releases the lock when its holder exits.
"""

import contextlib
import errno
import hashlib
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.data.images.files import NUM_PER_RUN, ImageFiles, decode_all
from lockstep.data.images.listing import ImageTable
from lockstep.data.images.splits import Images, Pixels, Rows, Splits
from lockstep.data.images.statistics import Statistics, channel_statistics, sampled_positions, value_counts
from lockstep.data.transfer.file_lock import Progress, locked
from lockstep.runs.files import atomic_file, is_own_folder, read_json, remove_leftovers, write_json
from lockstep.system.hardware import available_bytes, num_cores
from lockstep.system.wording import plural, size_text

FORMAT = 2  # increased when the same files give other pixels
Store = Callable[[int, Tensor], object]  # of the position of the first image, and images (n, C, H, W)
HINT = "set data.cache to a folder of your own, or data.cache=null to decode into memory in every run."


class NoSpace(ValueError):
    """The disk has too little space for the cache."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """The images of `table` as uint8 pixels, with the settings of `image_folder`."""

    table: ImageTable
    image_size: int | None
    channels: int
    background: str
    cache: str | None

    @cached_property
    def files(self) -> ImageFiles:
        """The files, in the order of the table."""
        paths = [os.fsencode(f"{self.table.folder}/{name}") for name in self.table.names]
        size = (self.image_size, self.image_size) if self.image_size is not None else None
        mean_bytes = float(self.table.states[:, 0].mean())
        return ImageFiles(np.array(paths), size, os.fsdecode(paths[0]), self.channels, self.background, mean_bytes)

    @property
    def place(self) -> Path:
        """The folder of these images in the cache."""
        assert self.cache is not None
        settings = f"{FORMAT} {self.channels} {self.image_size} {self.background} {self.table.origin}"
        code = hashlib.blake2b(os.fsencode(settings), digest_size=4).hexdigest()
        size = f"{self.image_size}x{self.image_size}" if self.image_size is not None else "full"
        return Path(self.cache).expanduser() / f"{self.table.folder.resolve().name}-{self.channels}x{size}-{code}"

    @property
    def path(self) -> Path:
        """The file of the pixels in the cache."""
        return self.place / f"{self.table.digest}.npy"

    def streaming_reason(self, memory: str) -> str:
        """Return why images are streamed, by `memory` or because they do not fit into memory; empty if they are not."""
        if memory != "auto":
            return "data.memory=stream" if memory == "stream" else ""
        needed, available = math.prod(self.files.shape), available_bytes()
        if available is None or needed <= available:
            return ""
        return f"decoded {size_text(needed)}, {size_text(available)} of memory free"

    def splits(self, memory: str) -> Splits:
        if memory == "once" and (self.cache is None or self.opened() is None):
            return self.listed("each image is used once")
        images = self._images(memory)
        return images if memory == "once" else replace(images, statistics=self._statistics(images.train.pixels))

    def listed(self, reason: str = "") -> Splits:
        """Return the images as files that are not opened, without statistics."""
        return self._splits(lambda rows: replace(self.files, files=self.files.files[rows], reason=reason))

    def _images(self, memory: str) -> Splits:
        if reason := self.streaming_reason(memory):
            return self.listed(reason)
        try:
            table = self.decoded()
        except NoSpace as error:
            if memory != "auto":
                raise
            return self.listed(str(error).partition(":")[0])
        place = f"memory-mapped ({self.place})" if self.cache is not None else "decoded in this run"
        return self._splits(lambda rows: Rows(table, torch.from_numpy(rows), place))

    def _splits(self, pixels_at: Callable[[NDArray[np.int64]], Pixels]) -> Splits:
        table = self.table
        train, val, test = (
            Images(pixels_at(rows), torch.from_numpy(table.targets[rows]), [table.names[row] for row in rows])
            for rows in table.splits.values()
        )
        return Splits(train, val, test, table.class_names)

    def decoded(self) -> Tensor:
        """Return all images, from the cache if there is one. Decodes them unless another process filled the cache.

        Raises ImageError with every broken image, NoSpace, or ValueError if the cache cannot be written.
        """
        if self.cache is None:
            table = allocated(self.table.setting, self.files.shape)
            decode_all(self.files, torch.get_num_threads(), store_in(table))
            return table
        found = self.opened()
        return self._fill_cache() if found is None else found

    def _statistics(self, pixels: Pixels) -> Statistics:
        """Measure at most 4,096 of the training images `pixels`, or read the statistics in the cache.

        They do not depend on where the pixels are, so that a run can resume on a machine with less memory.
        """
        sample = sampled_positions(len(pixels))
        rows = self.table.splits["train"][sample.numpy()]
        key = f"statistics {hashlib.blake2b(rows.tobytes(), digest_size=8).hexdigest()}"
        path = self.path.with_suffix(".json") if self.cache is not None else None
        known = read_json(path) if path is not None and _is_trusted(path) else {}
        if key in known:
            mean, std = known[key]
            return Statistics(tuple(mean), tuple(std))
        with self.files.threads(num_cores()) as threads:
            counts = threads.map(lambda run: value_counts(pixels[run]), sample.split(NUM_PER_RUN))
            statistics = channel_statistics(torch.stack(list(counts)).sum(0))
        if path is not None:
            with contextlib.suppress(OSError):  # a cache that is only readable: measured in every run
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, known | {key: statistics})
        return statistics

    # -- the cache -----------------------------------------------------------------------------------------------------

    def opened(self) -> Tensor | None:
        """Map the images of the cache, read-only; None if it has no complete file of them."""
        with self._explained():
            try:
                table = np.load(self.path, mmap_mode="r") if _is_trusted(self.path) else None
            except (ValueError, EOFError):  # incomplete, or not a file of NumPy
                return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of a tensor that cannot be written to
            return None if table is None else torch.from_numpy(table)

    def _fill_cache(self) -> Tensor:
        """Decode the images into the cache, unless another process does, and remove those of other states of them."""
        what = self.table.folder.name
        with self._explained(), self._locked():
            found = self.opened()
            if found is not None:
                return found
            shape = self.files.shape
            row, total, free = math.prod(shape[1:]), math.prod(shape), shutil.disk_usage(self.place).free
            if total > free:
                raise self._no_space(f"{total / 2**30:.1f} GiB, but its disk has {free / 2**30:.1f} GiB free")
            remove_leftovers(self.place, is_deep=False)
            progress = Progress(f"Decoding {what}", "images")

            with contextlib.ExitStack() as ended, atomic_file(self.path) as file:
                ended.callback(progress.end)
                np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
                file.flush()
                descriptor, start = file.fileno(), file.tell()
                # all cores: the other processes of this machine wait
                decode_all(
                    self.files,
                    num_cores(),
                    lambda first, block: _write(descriptor, block, start + first * row),
                    lambda num_done: progress.show(num_done, shape[0]),
                )
            for other in self.place.iterdir():
                if not other.name.startswith((f"{self.table.digest}.", ".")):
                    other.unlink(missing_ok=True)  # a process that has it mapped can still read it
            print(
                f"Decoded {plural(shape[0], 'image')} of {what} in {progress.elapsed_s:.1f} s, "
                f"{shape[0] / progress.elapsed_s:,.0f} images/s, into {self.path} ({size_text(total)})",
                flush=True,
            )
            found = self.opened()
            assert found is not None
            return found

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.place.mkdir(parents=True, exist_ok=True)
        if not is_own_folder(self.place):
            raise ValueError(f"data.cache={self.cache}: {self.place} belongs to another user: {HINT}")
        with locked(self.place / ".lock", f"decodes {self.table.folder.name}"):
            yield

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._no_space(f"more than its disk holds ({error.strerror})") from error
            raise ValueError(f"data.cache={self.cache} cannot be used ({error}): {HINT}") from error

    def _no_space(self, needs: str) -> NoSpace:
        return NoSpace(
            f"data.cache={self.cache} needs {needs}: free some space, set data.cache to a folder on another disk, a "
            "smaller data.image_size, or data.memory=stream to decode images when they are needed."
        )


def allocated(setting: str, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor for decoded images (N, C, H, W). Raises ValueError if the machine has too little memory."""
    needed, available = math.prod(shape), available_bytes()
    if available is not None and needed > available:
        raise ValueError(
            f"{setting} needs {needed / 2**30:.1f} GiB of memory when decoded, but this machine has "
            f"{available / 2**30:.1f} GiB left: set a smaller data.image_size, give fewer images, or train with "
            "data.memory=stream."
        )
    return torch.empty(shape, dtype=torch.uint8)


def store_in(table: Tensor) -> Store:
    return lambda first, block: table[first : first + len(block)].copy_(block)


def _is_trusted(path: Path) -> bool:
    """Return whether a file belongs to this user or to root: other users may change theirs."""
    try:
        return path.lstat().st_uid in (os.geteuid(), 0)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _write(descriptor: int, block: Tensor, offset: int) -> None:
    rest = memoryview(block.numpy().tobytes())
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written

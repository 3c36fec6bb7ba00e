"""Turn image files into splits of pixels.

Images are decoded once into a cache or into memory, or whenever they are read.

A table of images has a folder `<cache>/<name>-<channels>x<size>-<hash>/` in the cache. It contains
`<digest of the files>.rows`, the scaled images (ragged_table.py), which every process maps into
memory. `<digest>.json` has their statistics, and `.lock` is held by the process that decodes. The
kernel releases the lock when its holder exits.
"""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from lockstep.data.images import ragged_table
from lockstep.data.images.image_files import (
    NUM_PER_RUN,
    ImageFiles,
    Sizes,
    decode_all,
    files_below,
    sampled_positions,
)
from lockstep.data.images.image_table import ImageTable
from lockstep.data.images.preprocessing import Preprocessing
from lockstep.data.images.ragged_table import RaggedTable, Rows
from lockstep.data.splits import (
    Images,
    Pixels,
    Splits,
    Statistics,
    channel_statistics,
    value_counts,
)
from lockstep.data.transfer.file_lock import Progress, wait_for_lock
from lockstep.runs.files import (
    atomic_file,
    is_folder_of_user,
    read_json,
    remove_leftovers,
    write_json,
)
from lockstep.system.hardware import available_bytes, num_cores
from lockstep.system.text import plural, size_text

FORMAT = 5  # increased when the same files give different pixels
HINT = (
    "set data.cache to a folder of your own, or data.cache=null to decode into memory in every run."
)


@dataclass(frozen=True)
class Decoding:
    """The images of `table` as uint8 pixels, with the settings of `image_folder`.

    They are stored as large as they are scaled, before they are cropped.
    """

    table: ImageTable
    preprocessing: Preprocessing
    channels: int
    cache: str | None

    @cached_property
    def files(self) -> ImageFiles:
        table = self.table
        return files_below(
            table.folder, table.names, table.states, self.preprocessing, self.channels
        )

    @property
    def cache_folder(self) -> Path:
        """Return the folder of these images in the cache."""
        assert self.cache is not None
        settings = f"{FORMAT} {self.channels} {self.preprocessing} {self.table.origin}"
        code = hashlib.blake2b(os.fsencode(settings), digest_size=4).hexdigest()
        size = "x".join(map(str, self.preprocessing.size or ("full",)))
        return (
            Path(self.cache).expanduser()
            / f"{self.table.folder.resolve().name}-{self.channels}x{size}-{code}"
        )

    @property
    def path(self) -> Path:
        """Return the path of the file with the pixels in the cache."""
        return self.cache_folder / f"{self.table.digest}.rows"

    @cached_property
    def sizes(self) -> Sizes:
        """Return the sizes (N, 2) of the scaled images."""
        print(
            f"Reading the sizes of {plural(len(self.files), 'image')} of {self.table.folder.name}",
            flush=True,
        )
        return self.files.scaled_sizes()

    @cached_property
    def num_bytes(self) -> int:
        """Return the number of bytes of all images as they are stored."""
        pixels = self.open_cache()
        if pixels is not None:
            return pixels.nbytes
        return int(ragged_table.starts_of(self.sizes, self.channels)[-1])

    def streaming_reason(self, memory: str) -> str:
        """Return the reason why images are streamed, or an empty text if they are not.

        The reason is the setting `memory`, or that the images do not fit into memory.
        """
        if memory == "stream":
            return "data.memory=stream"
        if memory == "once":
            return "each image is used once" if self.open_cache() is None else ""
        available = available_bytes()
        if memory != "auto" or available is None or self.num_bytes <= available:
            return ""
        return f"decoded {size_text(self.num_bytes)}, {size_text(available)} of memory free"

    def splits(self, memory: str) -> Splits:
        reason = self.streaming_reason(memory)
        if reason:
            images = self.list_splits(reason)
        else:
            table = self.load_pixels()
            is_cached = self.cache is not None
            reason = f"memory-mapped ({self.cache_folder})" if is_cached else "decoded in this run"
            rows = torch.arange(len(table.sizes))
            images = self._splits(Rows(table, rows, reason, self.preprocessing))
        if memory == "once":
            return images
        return replace(images, statistics=self._statistics(images.train.pixels))

    def list_splits(self, reason: str = "") -> Splits:
        """Return the images as files that are not opened, without statistics."""
        return self._splits(replace(self.files, reason=reason))

    def _splits(self, pixels: Pixels) -> Splits:
        table = self.table
        images = Images(pixels, torch.from_numpy(table.targets), table.names, table.groups)
        train, val, test = (images.take(torch.from_numpy(rows)) for rows in table.splits.values())
        return Splits(train, val, test, table.class_names, files=table, folder=table.folder)

    def load_pixels(self) -> RaggedTable:
        """Return all images, from the cache if there is one.

        Decodes them, unless another process has filled the cache. Raises ImageError with every
        broken image, or ValueError if the cache cannot be written.
        """
        pixels = self.open_cache()
        if pixels is not None:
            return pixels
        if self.cache is not None:
            return self._fill_cache()
        refuse_beyond_memory(self.table.setting, self.num_bytes)
        with ragged_table.memory_file() as file:
            with ragged_table.stores(file, self.files, self.sizes) as store:
                decode_all(self.files, torch.get_num_threads(), store)
            return RaggedTable.open(file, self.channels)

    def _statistics(self, pixels: Pixels) -> Statistics:
        """Measure up to 4,096 of the training images `pixels`, or read the statistics in the cache.

        The statistics do not depend on where the pixels are stored, so that a run can resume on a
        machine with less memory.
        """
        sample = sampled_positions(len(pixels))
        rows = self.table.splits["train"][sample.numpy()]
        key = f"statistics {hashlib.blake2b(rows.tobytes(), digest_size=8).hexdigest()}"
        path = self.path.with_suffix(".json") if self.cache is not None else None
        records = read_json(path) if path is not None and is_trusted(path) else {}
        if key in records:
            mean, std = records[key]
            return Statistics(tuple(mean), tuple(std))
        with self.files.threads(num_cores()) as threads:
            counts = threads.map(lambda run: value_counts(pixels[run]), sample.split(NUM_PER_RUN))
            statistics = channel_statistics(torch.stack(list(counts)).sum(0))
        if path is not None:
            # If the cache is read-only, every run measures again.
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, records | {key: statistics})
        return statistics

    def open_cache(self) -> RaggedTable | None:
        """Map the images of the cache read-only, or return None if it has no complete file."""
        # ValueError and EOFError mean that the file is incomplete.
        with self._explain_disk_errors(), contextlib.suppress(ValueError, EOFError):
            if self.cache is not None and is_trusted(self.path):
                return RaggedTable.open(open(self.path, "rb"), self.channels)
        return None

    def _fill_cache(self) -> RaggedTable:
        """Decode the images into the cache, unless another process does.

        Removes the images of other states of the same files.
        """
        folder_name = self.table.folder.name
        with self._explain_disk_errors(), self._lock_cache():
            pixels = self.open_cache()
            if pixels is not None:
                return pixels
            count = len(self.files)
            total = self.num_bytes
            free = shutil.disk_usage(self.cache_folder).free
            if total > free:
                raise self._no_space(f"{size_text(total)}, but its disk has {size_text(free)} free")
            remove_leftovers(self.cache_folder, is_deep=False)
            progress = Progress(f"Decoding {folder_name}", "images")
            with (
                atomic_file(self.path) as file,
                ragged_table.stores(file, self.files, self.sizes) as store,
            ):
                # The other processes of this machine wait, so that all cores are free.
                decode_all(self.files, num_cores(), store, progress.show)
            for path in self.cache_folder.iterdir():
                if not path.name.startswith((f"{self.table.digest}.", ".")):
                    path.unlink(missing_ok=True)  # Processes that have it mapped can still read it.
            print(
                f"Decoded {plural(count, 'image')} of {folder_name} in {progress.elapsed_s:.1f} s, "
                f"{count / progress.elapsed_s:,.0f} images/s, "
                f"into {self.path} ({size_text(total)})",
                flush=True,
            )
            pixels = self.open_cache()
            assert pixels is not None
            return pixels

    @contextlib.contextmanager
    def _lock_cache(self) -> Iterator[None]:
        self.cache_folder.mkdir(parents=True, exist_ok=True)
        if not is_folder_of_user(self.cache_folder):
            raise ValueError(
                f"data.cache={self.cache}: {self.cache_folder} belongs to another user: {HINT}"
            )
        with wait_for_lock(self.cache_folder / ".lock", f"decodes {self.table.folder.name}"):
            yield

    @contextlib.contextmanager
    def _explain_disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._no_space(f"more than its disk holds ({error.strerror})") from error
            raise ValueError(f"data.cache={self.cache} cannot be used ({error}): {HINT}") from error

    def _no_space(self, needs: str) -> ValueError:
        return ValueError(
            f"data.cache={self.cache} needs {needs}: free some space, use another disk, a smaller "
            "data.image_size, or data.memory=stream."
        )


def refuse_beyond_memory(setting: str, num_bytes: int) -> None:
    available = available_bytes()
    if available is not None and num_bytes > available:
        raise ValueError(
            f"{setting} needs {size_text(num_bytes)} of memory when decoded, of "
            f"{size_text(available)} left: set a smaller data.image_size, or data.memory=stream."
        )


def is_trusted(path: Path) -> bool:
    """Return whether a file belongs to this user or to root.

    Other users could change a file of theirs.
    """
    try:
        return path.lstat().st_uid in (os.geteuid(), 0)
    except (FileNotFoundError, NotADirectoryError):
        return False

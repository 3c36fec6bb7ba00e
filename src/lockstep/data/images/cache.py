"""Decoded images on disk: one file that every process maps into its memory, found again until an image changes.

A folder of images has a place `<cache>/<name>-<channels>x<size>-<hash>/`. In it: `<digest of the image files>.npy`,
uint8 (N, C, H, W), readable by numpy; `.lock`, held by the process that builds; and what is being built, under a name
that nobody opens. The kernel lets go of the lock when its holder ends, however it ends. No torch: a cache that is up to
date is seen at once.
"""

import contextlib
import errno
import hashlib
import mmap
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from lockstep.data.images.listing import FileListing
from lockstep.data.transfer.file_lock import locked
from lockstep.runs.files import is_own_folder, no_link, replace, write_atomically

FORMAT = 2  # other pixels from the same files: a new number
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # mmap.MAP_NORESERVE of Python 3.13
CURE = "set data.cache to a folder of your own, or data.cache=null to decode into memory in every run."
Pixels = NDArray[np.uint8]


class NoSpace(ValueError):
    """The disk has too little room; the message names the setting and the cures."""


@dataclass(frozen=True)
class Entry:
    """The decoded images of one state of a folder, there or not. `setting` is the value of data.cache."""

    setting: str
    place: Path
    digest: str

    @property
    def path(self) -> Path:
        """The file of the pixels."""
        return self.place / f"{self.digest}.npy"

    def opened(self) -> Pixels | None:
        """The pixels (N, C, H, W), mapped; None where there is no whole entry.

        Pages are read when they are needed and shared by all processes. Writing to them changes this process alone.
        """
        with self._explained(), self._read(self.path) as file:
            return _mapped(file.fileno()) if file is not None else None

    @contextlib.contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Hold the place for this process; while another one does, wait, and print that it decodes `what`."""
        with self._explained():
            if not is_own_folder(self._made()):
                raise ValueError(f"data.cache={self.setting}: {self.place} belongs to somebody else: {CURE}")
            with locked(self.place / ".lock", f"decodes {what}"):
                yield

    def check_space(self, num_bytes: int) -> None:
        """Raise NoSpace when the disk has not room for `num_bytes`."""
        with self._explained():
            free = shutil.disk_usage(self._made()).free
        if num_bytes > free:
            raise self._no_space(f"{num_bytes / 2**30:.1f} GiB, but its disk has {free / 2**30:.1f} GiB free")

    @contextlib.contextmanager
    def building(self, shape: tuple[int, int, int, int]) -> Iterator[Callable[[int, Pixels], None]]:
        """A function that puts images at a position, from any thread; at the end the entry is there, others are gone.

        Needs the lock. Whatever fails leaves nothing that is taken for an entry; what a killed process left is removed.
        """
        with self._explained():
            mine = f".building-{socket.gethostname()}-"
            for left in self.place.glob(f"{mine}*"):
                left.unlink()
            path = self.place / f"{mine}{os.getpid()}-{secrets.token_hex(4)}"
            row = int(np.prod(shape[1:]))
            try:
                with open(path, "xb") as file:
                    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(file, header)
                    start = file.tell()
                    file.flush()
                    yield lambda position, block: _write(file.fileno(), block, start + position * row)
                    os.ftruncate(file.fileno(), start + shape[0] * row)
                    os.fsync(file.fileno())
                replace(path, self.path)
            finally:
                path.unlink(missing_ok=True)
            self._remove_others()

    def read_note(self, name: str) -> str | None:
        """What was noted about the entry under `name`; None where nothing was."""
        with self._explained(), self._read(self._note(name)) as file:
            return file.read().decode() if file is not None else None

    def write_note(self, name: str, text: str) -> None:
        """Note it where this process may write; a cache that others keep is only read."""
        if os.access(self.place if self.place.exists() else _nearest(self.place), os.W_OK):
            with self._explained():
                self._made()
                write_atomically(self._note(name), text)

    def _note(self, name: str) -> Path:
        return self.place / f"{self.digest}.{name}"

    def _remove_others(self) -> None:
        for other in self.place.iterdir():
            if not other.name.startswith((f"{self.digest}.", ".")):
                other.unlink(missing_ok=True)  # who has it mapped goes on reading it

    @contextlib.contextmanager
    def _read(self, path: Path) -> Iterator[BinaryIO | None]:
        """A file of the cache; None where there is none of this user or root, for others may change theirs."""
        try:
            opened = open(path, "rb", opener=no_link)  # noqa: SIM115
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        with opened as file:
            yield file if os.fstat(file.fileno()).st_uid in (os.geteuid(), 0) else None

    def _made(self) -> Path:
        self.place.mkdir(parents=True, exist_ok=True)
        return self.place

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._no_space(f"more than its disk holds ({error.strerror})") from error
            raise ValueError(f"data.cache={self.setting} cannot be used ({error}): {CURE}") from error

    def _no_space(self, needs: str) -> NoSpace:
        return NoSpace(
            f"data.cache={self.setting} needs {needs}: make room, set data.cache to a folder on another disk, set a "
            "smaller data.image_size, or data.memory=stream to decode images when they are needed."
        )


def entry(cache: str, listing: FileListing, *, image_size: int | None, channels: int, background: str) -> Entry:
    """Where the images of `listing`, in the state they are in and decoded so, are kept."""
    settings = f"{FORMAT} {channels} {image_size} {background} {listing.origin}"
    code = hashlib.blake2b(os.fsencode(settings), digest_size=4).hexdigest()
    size = f"{image_size}x{image_size}" if image_size is not None else "full"
    place = Path(cache).expanduser() / f"{listing.folder.resolve().name}-{channels}x{size}-{code}"
    return Entry(cache, place, listing.digest)


def _nearest(path: Path) -> Path:
    """The lowest folder above `path` that is there."""
    return next(parent for parent in path.absolute().parents if parent.exists())


def _write(descriptor: int, block: Pixels, offset: int) -> None:
    rest = memoryview(block.tobytes())
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _mapped(descriptor: int) -> Pixels | None:
    with open(descriptor, "rb", closefd=False) as file:
        try:
            version = np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        except ValueError:
            return None
        start = file.tell()
    size = start + int(np.prod(shape))
    if version != (1, 0) or dtype != np.uint8 or os.fstat(descriptor).st_size != size:
        return None
    # private and writable: torch wants to write, the file stays as it is, and no memory is set aside for copies
    pages = mmap.mmap(descriptor, size, mmap.MAP_PRIVATE | NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE)
    return np.frombuffer(pages, np.uint8, offset=start).reshape(shape)

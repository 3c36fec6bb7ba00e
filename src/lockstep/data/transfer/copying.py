"""Copies of files on a local disk, made once for all runs of a machine and replaced when the source changes.

A copy is the folder `<copy_to>/<name>-<hash of path or URL>-<digest of the files>/`. It contains the files, in
`<name>/`, and `.copied`, its record, which readers of the copy lock. Next to it are `<name>-<hash>-part/`, incomplete,
and `.<name>-<hash>.lock`, held while copies of this source are made or removed. No torch.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from glob import escape
from pathlib import Path
from typing import NamedTuple

from lockstep.data.transfer.file_lock import Progress, wait_for_lock
from lockstep.runs.files import is_own_folder
from lockstep.system.wording import plural

RECORD = ".copied"
NUM_THREADS = 16  # which wait for a network or a disk
NUM_PER_BLOCK = 1024
# thumbnails, archive metadata and trash
SYSTEM_FOLDERS = ("@eaDir", "__MACOSX", "#recycle", "@Recycle", "$RECYCLE.BIN")
REMOVE_S = 2.0  # runs that end at the same time hold the lock briefly


@dataclass(frozen=True, eq=False)
class Source:
    """Files to copy: bytes of each, None if unknown, by name below the source.

    `digest` changes with any file. `fetch(names, folder)` copies files into a folder that has their subfolders.
    """

    sizes: Mapping[str, int | None]
    digest: str
    fetch: Callable[[Sequence[str], Path], None]


class Record(NamedTuple):
    """Source of a complete copy, its digest, and the digest of names, sizes and times in the copy."""

    source: str
    digest: str
    files: str


@dataclass(frozen=True)
class Copy:
    """Copies of `source`, one for each state of its files; `setting` is their place, such as data.copy_to=/scratch."""

    setting: str
    source: str
    stem: Path
    name: str

    def place(self, digest: str) -> Path:
        return self.stem.with_name(f"{self.stem.name}-{digest[:12]}")

    def make(self, source: Source, held: contextlib.ExitStack) -> str:
        """Copy the files if there is no copy yet, protect it from removal until `held` closes, and return the digest.

        Removes unused copies of other states, and incomplete ones of killed processes. Raises ValueError.
        """
        place = self.place(source.digest)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with wait_for_lock(self._lock, f"copies {self.name}"):
                if os.path.lexists(place) and not is_own_folder(place):
                    raise PermissionError(f"{place} belongs to another user")
                for other in self._places() - {place}:
                    _remove_unused(other)
                if read_record(place) != self._record(source, place):
                    self._bring(source, place)
                hold(place, held)
        except OSError as error:
            hint = "check permissions and free space, or use a folder of your own on a disk of the node."
            raise ValueError(f"{self.setting}: {self.source} cannot be copied ({error}): {hint}") from error
        return source.digest

    def remove(self) -> None:
        """Remove the copies that no process makes or uses. A failure is only printed."""
        from filelock import FileLock

        try:
            if self._places():
                with FileLock(self._lock, timeout=REMOVE_S):
                    for place in self._places():
                        _remove_unused(place)
        except OSError as error:  # TimeoutError: another process copies
            print(f"warning: copies {self.stem}-* are not removed: {error}", file=sys.stderr, flush=True)

    def _bring(self, source: Source, place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)  # a damaged copy
        part, names, num_bytes = self.place("part"), list(source.sizes), sum(filter(None, source.sizes.values()))
        free = shutil.disk_usage(part.parent).free
        if num_bytes > free:
            raise OSError(f"it has {num_bytes / 2**30:.2f} GiB, but the disk has {free / 2**30:.2f} GiB free")
        folder, progress = part / self.name, Progress(f"Copying {self.name}", "files")
        try:
            for parent in {(folder / name).parent for name in names}:
                parent.mkdir(parents=True, exist_ok=True)
            for start in range(0, len(names), NUM_PER_BLOCK):
                progress.show(start, len(names))
                source.fetch(names[start : start + NUM_PER_BLOCK], folder)
            for name, size in source.sizes.items():
                if size not in (None, os.path.getsize(folder / name)):
                    raise ValueError(f"{self.source}: {name} changed while it was copied: start the run again.")
            (part / RECORD).write_text(json.dumps(self._record(source, part)._asdict()))
            os.rename(part, place)
        finally:
            progress.end()
            shutil.rmtree(part, ignore_errors=True)
        done = f"Copied {plural(len(names), 'file')} of {self.name} ({num_bytes / 2**20:,.1f} MiB)"
        print(f"{done} in {progress.elapsed_s:.1f} s to {place / self.name}", flush=True)

    def _record(self, source: Source, place: Path) -> Record:
        return Record(self.source, source.digest, digest_of(_scan(place / self.name).items()))

    def _places(self) -> set[Path]:
        return set(self.stem.parent.glob(f"{escape(self.stem.name)}-*"))

    @property
    def _lock(self) -> Path:
        return self.stem.with_name(f".{self.stem.name}.lock")


def is_skipped(name: str) -> bool:
    """Return whether a file or folder is hidden, or one of a system and not of the user."""
    return name.startswith(".") or name in SYSTEM_FOLDERS


def stem_of(folder: str, source: str, name: str) -> Path:
    """Path prefix of the copies of `source` below `folder`."""
    code = hashlib.blake2b(os.fsencode(source), digest_size=6).hexdigest()
    return Path(folder).expanduser().absolute() / f"{name}-{code}"


def read_record(place: Path) -> Record | None:
    """Read the record of a copy; None if there is no complete copy."""
    try:
        return Record(**json.loads((place / RECORD).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def record_of(folder: Path, names: Sequence[str], states: Sequence[Sequence[int]]) -> Record | None:
    """Return the record of a copy whose files have these (bytes, mtime_ns); None for another or a changed folder."""
    record = read_record(folder.absolute().parent)
    files = zip(map(os.path.normpath, names), states, strict=True)  # not read without a record
    return record if record is not None and record.files == digest_of(dict(files).items()) else None


def digest_of(files: Iterable[tuple[str, Sequence[object]]]) -> str:
    """Digest of the names and states of files, in any order."""
    text = "".join(f"{name}\0{' '.join(map(str, state))}\0" for name, state in sorted(files))
    return hashlib.blake2b(os.fsencode(text), digest_size=16).hexdigest()


def hold(place: Path, held: contextlib.ExitStack) -> None:
    """Protect an existing copy from removal until `held` closes."""
    file = held.enter_context((place / RECORD).open("rb"))
    fcntl.flock(file, fcntl.LOCK_SH)


def files_of(root: Path, sizes: Mapping[str, int | None], digest: str, files: Mapping[str, str]) -> Source:
    """Files below `root`. A name whose file has another name in `files` becomes a link to that in the copy."""

    def copy(folder: Path, name: str) -> None:
        file = files.get(name, name)
        if file == name:
            shutil.copyfile(root / name, folder / name)
        else:
            (folder / name).symlink_to(os.path.relpath(file, os.path.dirname(name)))

    def fetch(names: Sequence[str], folder: Path) -> None:
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            list(pool.map(partial(copy, folder), names))

    return Source(sizes, digest, fetch)


def files_below(root: Path, folder: str) -> Source:
    """Every file of `root/folder`, by its path below `root`."""
    paths = [path for path in (root / folder).rglob("*") if path.is_file()]
    states = {str(path.relative_to(root)): path.stat() for path in paths}
    digest = digest_of((name, (state.st_size, state.st_mtime_ns, state.st_ctime_ns)) for name, state in states.items())
    return files_of(root, {name: state.st_size for name, state in states.items()}, digest, {})


def _scan(folder: Path) -> dict[str, tuple[int, int]]:
    """(bytes, mtime_ns) of every file below a folder."""
    files, start = {}, len(f"{folder}/")
    for parent, _, names in os.walk(folder):
        for path in (f"{parent}/{name}" for name in names):
            state = os.stat(path)
            files[path[start:]] = (state.st_size, state.st_mtime_ns)
    return files


def _remove_unused(place: Path) -> None:
    with contextlib.suppress(FileNotFoundError), open(place / RECORD, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        # first, so that an interrupted removal leaves no valid copy
        (place / RECORD).unlink()
    shutil.rmtree(place)

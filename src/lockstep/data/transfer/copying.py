"""Copies of files on a disk of the node: made once, completed after a kill, renewed file by file, removed when unused.

A source has a place `<copy_to>/<name>-<hash of path or URL>/`. In it: `<name>/`, the files; `.copied`, the record of a
complete one, written last; `.journal`, what an incomplete one has; `.lock`, held by a process that copies or removes;
and `.used`, held by those that read. The kernel lets go of both when their holder ends, however it ends. A copy that is
renewed while another run reads it changes for that run, too, as the source itself has. No torch.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lockstep.data.transfer import file_lock
from lockstep.data.transfer.copy_record import (
    JOURNAL,
    RECORD,
    CopiedFile,
    Note,
    State,
    line,
    read_files,
    read_note,
    remove_empty,
    scan,
)
from lockstep.data.transfer.file_lock import Lock, Progress
from lockstep.runs.files import atomic_file, is_own_folder
from lockstep.system.wording import plural

LOCK, USED, PART = ".lock", ".used", ".part"
NUM_THREADS = 16  # wait for a network or a disk
NUM_PER_BLOCK = 256
# thumbnails, remains of archives and deleted files, which systems put next to images
SYSTEM_FOLDERS = ("@eaDir", "__MACOSX", "#recycle", "@Recycle", "$RECYCLE.BIN")
BLOCK_BYTES = 4096  # of a disk: a file takes whole ones
REMOVE_S = 2.0  # others that leave at the same time hold the lock for an instant


@dataclass(frozen=True, eq=False)
class Source:
    """What is copied: the state of every file by its name below the source, and what brings one of them to a path.

    `fetch` is called by several threads. `digest` changes with any name or state.
    """

    files: Mapping[str, State]
    fetch: Callable[[str, Path], None]
    digest: str


@dataclass(frozen=True)
class Copy:
    """The copy of `source`, there or not. `setting` is what says where, `is_optional` whether it can be left out."""

    setting: str
    source: str
    place: Path
    name: str
    is_optional: bool

    @property
    def folder(self) -> Path:
        """The folder of the copy, which is read instead of the source."""
        return self.place / self.name

    def make(self, find: Callable[[], Source], beat: Callable[[], None], held: contextlib.ExitStack) -> None:
        """Have all files of the source that `find` lists, copied by this process or by another one that was first.

        The copy stays at least until `held` closes. `beat` is called now and then. Raises ValueError, with the cure.
        """

        def wait() -> bool:
            beat()
            return True

        with self._explained(), self._locked(wait) as lock:
            self._complete(find(), lock, beat)
            held.enter_context(self.used())

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Keep others from removing the copy; while it is made, or while another process of the node does the same."""
        descriptor = os.open(self.place / USED, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child of this process may have it open still
            os.close(descriptor)

    def remove(self) -> None:
        """Remove the copy, unless another process makes or uses it: whoever leaves last does. Failing is only told."""
        deadline = time.monotonic() + REMOVE_S
        try:
            if not self.place.is_dir():
                return
            with self._locked(lambda: time.monotonic() < deadline), open(self.place / USED, "ab") as used:
                fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # without its record, what an interrupted removal leaves is no copy
                (self.place / RECORD).unlink(missing_ok=True)
                (self.place / JOURNAL).unlink(missing_ok=True)
                shutil.rmtree(self.folder, ignore_errors=True)
                shutil.rmtree(self.place)
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            print(f"The copy {self.place} could not be removed: {error}", file=sys.stderr, flush=True)

    # -- locks ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self, waits: Callable[[], bool]) -> Iterator[Lock]:
        """Hold the place for this process; while another one does, ask `waits` whether to go on waiting.

        Raises BlockingIOError when not.
        """
        descriptor = -1
        while descriptor < 0:
            descriptor = self._opened_lock(waits)
        try:
            yield Lock(descriptor)
        finally:
            os.close(descriptor)

    def _opened_lock(self, waits: Callable[[], bool]) -> int:
        """The lock, taken; -1 when it was removed meanwhile."""
        self._make_place()
        path = self.place / LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            return -1
        try:
            lock = Lock(descriptor)
            while not lock.take():
                if not waits():
                    raise BlockingIOError
                lock.show_holder(f"copies {self.name}", "files")
                time.sleep(file_lock.POLL_S)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
                    kept, descriptor = descriptor, -1
                    return kept
            return -1
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _make_place(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        if not is_own_folder(self.place):
            raise ValueError(f"{self.setting}: {self.place} belongs to somebody else: {self._cure}")

    # -- copying -------------------------------------------------------------------------------------------------------

    def _complete(self, source: Source, lock: Lock, beat: Callable[[], None]) -> None:
        """Bring what is missing or changed, and remove what the source no longer has. Needs the lock."""
        known, present = read_files(self.place), dict(scan(self.folder))
        same = {
            name: copied
            for name, state in source.files.items()
            if (copied := known.get(name))
            and copied.state == state
            and present.get(name) == (copied.size, copied.time_ns)
        }
        todo = [name for name in source.files if name not in same]
        others = [name for name in present if name not in source.files]
        note = Note(self.source, source.digest, code_of(map(os.fsencode, source.files)))
        if not todo and not others and read_note(self.place) == note:
            return
        self._check_space([source.files[name][0] for name in todo])
        for left in self.place.glob(f"{PART}-{socket.gethostname()}-*"):
            left.unlink()
        journal = self.place / JOURNAL
        with atomic_file(journal) as file:
            file.writelines(line(name, copied) for name, copied in same.items())
        (self.place / RECORD).unlink(missing_ok=True)
        for name in others:
            (self.folder / name).unlink()
        self.folder.mkdir(exist_ok=True)
        remove_empty(self.folder)
        same |= self._bring(source, todo, lock, beat)
        with atomic_file(self.place / RECORD) as file:
            file.write(json.dumps(note._asdict()).encode() + b"\n")
            file.writelines(line(name, copied) for name, copied in same.items())
        journal.unlink()

    def _bring(self, source: Source, names: list[str], lock: Lock, beat: Callable[[], None]) -> dict[str, CopiedFile]:
        progress, num_bytes = Progress(f"Copying {self.name}", "files"), 0
        brought: dict[str, CopiedFile] = {}
        journal = os.open(self.place / JOURNAL, os.O_WRONLY | os.O_APPEND)

        def bring(name: str) -> CopiedFile:
            copied = self._bring_one(source, name)
            os.write(journal, line(name, copied))
            return copied

        try:
            with ThreadPoolExecutor(NUM_THREADS) as pool:
                for start in range(0, len(names), NUM_PER_BLOCK):
                    block = names[start : start + NUM_PER_BLOCK]
                    brought |= zip(block, pool.map(bring, block), strict=True)
                    lock.tell(len(brought), len(names))
                    progress.show(len(brought), len(names))
                    beat()
        finally:
            os.close(journal)
            progress.end()
        num_bytes = sum(file.size for file in brought.values())
        if brought:
            print(
                f"Copied {plural(len(brought), 'file')} of {self.name} ({num_bytes / 2**20:,.1f} MiB) in "
                f"{progress.elapsed_s:.1f} s to {self.folder}",
                flush=True,
            )
        return brought

    def _bring_one(self, source: Source, name: str) -> CopiedFile:
        """A file appears under its name when it is whole."""
        part = self.place / f"{PART}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        size = source.files[name][0]
        try:
            try:
                source.fetch(name, part)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT) or error.filename == str(part):
                    raise
                raise ValueError(
                    f"{self.source}: {name} cannot be read ({error.strerror or type(error).__name__}): mend it, or "
                    "start again if it was being changed; what is copied already stays."
                ) from error
            state = os.stat(part)
            if size not in (-1, state.st_size):
                raise ValueError(
                    f"{self.source}: {name} has {state.st_size:,} bytes, not {size:,}: it changed while it was copied, "
                    "or was cut short. Start again; what is copied already stays."
                )
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        return CopiedFile(state.st_size, state.st_mtime_ns, source.files[name])

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def _check_space(self, sizes: Iterable[int]) -> None:
        needed = sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes if size > 0)
        free = shutil.disk_usage(self.place).free
        if needed > free:
            raise self._no_space(f"{needed / 2**30:.2f} GiB, but its disk has {free / 2**30:.2f} GiB free")

    @property
    def _cure(self) -> str:
        otherwise = ", or data.copy_to=null to read the files where they are" if self.is_optional else ""
        return f"set data.copy_to to a folder of your own on a disk of the node{otherwise}."

    def _no_space(self, needs: str) -> ValueError:
        return ValueError(
            f"{self.setting} needs {needs}, for the copy of {self.source}: make room there, or {self._cure}"
        )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if error.errno is None:
                raise  # says itself what was looked for
            raise ValueError(f"{self.setting} cannot be used ({error}): {self._cure}") from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._no_space(f"more than its disk holds ({error.strerror})") from error
            raise ValueError(f"{self.setting} cannot be used ({error}): {self._cure}") from error


def is_left_out(name: str) -> bool:
    """True for a file or folder that is hidden, or that a system put next to images."""
    return name.startswith(".") or name in SYSTEM_FOLDERS


def place_of(folder: str, source: str, name: str) -> Path:
    """Where below `folder` the copy of `source` has its place: the same in every run."""
    return (
        Path(folder).expanduser().absolute()
        / f"{name}-{hashlib.blake2b(os.fsencode(source), digest_size=6).hexdigest()}"
    )


def note(folder: Path) -> Note | None:
    """What a folder says of itself where it is a complete copy."""
    return read_note(folder.absolute().parent)


def code_of(names: Iterable[bytes]) -> str:
    """A code that changes with any of the names, but not with their order."""
    return hashlib.blake2b(b"\0".join(sorted(names)), digest_size=16).hexdigest()


def digest_of(files: Mapping[str, State]) -> str:
    """A code that changes with any name or state of the files."""
    text = "".join(f"{name}\0{state}\0" for name, state in sorted(files.items()))
    return hashlib.blake2b(os.fsencode(text), digest_size=16).hexdigest()


def files_below(root: Path, folder: str) -> Source:
    """Every file of a folder of `root`, in the same folder of a copy."""
    files: dict[str, State] = {}
    for path in sorted((root / folder).rglob("*")):
        if path.is_file():
            state = path.stat()
            files[str(path.relative_to(root))] = (state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    return Source(files, lambda name, path: copy_file(root / name, path), digest_of(files))


def copy_file(source: Path, path: Path) -> None:
    """The content alone: what the file was is in the record."""
    shutil.copyfile(source, str(path))

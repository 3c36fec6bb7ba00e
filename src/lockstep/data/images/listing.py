"""The image files of a folder, their classes and the state they are in: a fraction of a second for 60,000. No torch."""

import hashlib
import itertools
import math
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from lockstep.data.transfer import copying
from lockstep.data.transfer.copying import is_left_out

# where below data.root the files of a data set lie: nothing else there is theirs
FOLDERS = {
    "lockstep.data.fashion_mnist": "FashionMNIST/raw",
    "lockstep.data.cifar10": "cifar-10-batches-py",
}
IMAGE_SUFFIXES = (
    *(".apng", ".avif", ".bmp", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".jpx"),
    *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
)
SPLIT_FOLDERS = ("train", "val", "test")
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


class Names(Sequence[str]):
    """File names in one piece of memory: a million of them reach another process at once, and are text when asked for.

    `text` holds all of them, each ended by a zero byte; `rows` says which of them, in which order, are meant; `prefix`
    stands before each.
    """

    def __init__(self, text: bytes, ends: NDArray[np.int64], rows: NDArray[np.int64], prefix: str = "") -> None:
        self._text = text
        self._ends = ends
        self._rows = rows
        self._prefix = prefix

    @classmethod
    def of(cls, names: Sequence[str]) -> "Names":
        """Pack all of `names` into one text."""
        text = os.fsencode("".join([f"{name}\0" for name in names]))
        return cls(text, np.flatnonzero(np.frombuffer(text, np.uint8) == 0), np.arange(len(names)))

    def select(self, positions: NDArray[np.int64]) -> "Names":
        """The names at `positions`, in that order."""
        return Names(self._text, self._ends, self._rows[positions], self._prefix)

    def below(self, folder: Path) -> "Names":
        """The same names as paths of files in `folder`."""
        return Names(self._text, self._ends, self._rows, f"{folder}/")

    @property
    def text(self) -> bytes:
        """The text of all packed names, also of those that are not selected."""
        return self._text

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "Names": ...
    def __getitem__(self, index: int | slice) -> "str | Names":
        if isinstance(index, slice):
            return Names(self._text, self._ends, self._rows[index], self._prefix)
        row = self._rows[index]
        start = self._ends[row - 1] + 1 if row else 0
        return self._prefix + os.fsdecode(self._text[start : self._ends[row]])

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))

    def __repr__(self) -> str:
        return f"Names({', '.join(map(repr, self[:3]))}{', ...' if len(self) > 3 else ''}; {len(self)})"


@dataclass(frozen=True, eq=False)
class FileListing:
    """Image files below a folder, and the state they are in.

    `states` (N, 3) are size, time of change and time of change of the entry of each file. `digest` changes with every
    file that is added, removed, renamed or written to. `origin` names the folder or the list that they are from.
    """

    folder: Path
    names: Names
    states: NDArray[np.int64]
    digest: str
    origin: str

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return int(self.states[:, 0].sum())


@dataclass(frozen=True, eq=False)
class Listing(FileListing):
    """Every image of a folder of class folders: its split folders one after the other, in each class after class.

    `parts` are the positions of the split folders there are; without any, all is "train". A copy has digest and origin
    of what was copied, so that one cache serves both.
    """

    class_names: tuple[str, ...]
    labels: NDArray[np.int64]
    parts: dict[str, range]


def list_classes(root: str) -> Listing:
    """The images of `root/{train,val,test}/<class>/`, or of `root/<class>/`, without what `is_left_out` says.

    Split folders may have any of `SPLIT_NAMES`, in upper or lower case. val and test may lack classes. Raises
    FileNotFoundError or ValueError, which say what was looked for.
    """
    folder = existing(root, f"data.root={root}")
    split_folders = _split_folders(root, folder)
    files = _Files(folder)
    parts: dict[str, range] = {}
    counts: dict[str, dict[str, int]] = {}
    for name, path in split_folders.items():
        first = len(files.names)
        counts[name] = {}
        for class_folder in _subfolders(path):
            before = len(files.names)
            files.add(class_folder)
            counts[name][class_folder.name] = len(files.names) - before
        parts[name] = range(first, len(files.names))
    _check_counts(root, split_folders, counts)
    _check_classes(root, split_folders, counts)
    names, states, digest = files.summary()
    origin = str(folder.resolve())
    copied = copying.read_record(folder.absolute().parent)
    if copied is not None and copied.files == copying.digest_of(zip(names, states[:, :2].tolist(), strict=True)):
        digest, origin = copied.digest, copied.source
    numbers = {name: number for number, name in enumerate(counts["train"])}
    labels = np.concatenate(
        [np.repeat([numbers[name] for name in classes], list(classes.values())) for classes in counts.values()]
    )
    return Listing(folder, names, states, digest, origin, tuple(counts["train"]), labels, parts)


def list_files(folder: Path, names: Sequence[str], origin: str) -> tuple[FileListing, list[int]]:
    """The files of a list, by their paths below `folder`, and the positions of those that are not there.

    A file that stands in the list twice is there twice.
    """
    states = np.zeros((len(names), 3), np.int64)
    missing = []
    for position, name in enumerate(names):
        try:
            state = os.stat(folder / name)
        except (OSError, ValueError):  # a path can hold what no path may
            missing.append(position)
            continue
        states[position] = state.st_size, state.st_mtime_ns, state.st_ctime_ns
        if not stat.S_ISREG(state.st_mode):
            missing.append(position)
    packed = Names.of(names)
    return FileListing(folder, packed, states, _digest(packed, states), origin), missing


def check_folders(root: str) -> None:
    """Raise what `list_classes` raises of folders; no image is looked at."""
    folder = existing(root, f"data.root={root}")
    split_folders = _split_folders(root, folder)
    counts = {name: {path.name: 1 for path in _subfolders(part)} for name, part in split_folders.items()}
    _check_counts(root, split_folders, counts)
    _check_classes(root, split_folders, counts)


def list_images(folder: Path) -> Names:
    """Every image below `folder`, in sorted order."""
    files = _Files(folder)
    files.add(folder)
    return files.summary()[0]


def class_order(name: str) -> tuple[float, str]:
    """Sorts class names: whole numbers by their value, before texts by the alphabet."""
    return (int(name), name) if name.removeprefix("-").isdecimal() else (math.inf, name)


def existing(root: str, setting: str) -> Path:
    """The path, when there is something; else FileNotFoundError that names `setting`, such as data.root=images."""
    path = Path(root).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{setting} does not exist (from {Path.cwd()}): correct the path.")
    return path


class _Files:
    """Names of image files below a folder, and (size, time of change, time of change of the entry) of each."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.names: list[str] = []
        self._states: list[int] = []

    def add(self, folder: Path) -> None:
        """Take in the images below `folder`, sorted by the parts of their paths. Links to folders are followed."""
        prefix = "" if str(folder) == self._root else f"{os.path.relpath(folder, self._root)}/"
        # a link could lead in a circle, or to images that are already taken
        above = {folder, *folder.absolute().parents, *folder.resolve().parents}
        self._add(str(folder), prefix, {(state.st_dev, state.st_ino) for state in map(os.stat, above)})

    def _add(self, folder: str, prefix: str, seen: set[tuple[int, int]]) -> None:
        # One call of the system for each file, relative to the open folder: most of the time is spent there (60,000
        # files: 0.12 of 0.2 s; one CPU thread, 2026-11-21).
        opened = os.open(folder, os.O_RDONLY)
        try:
            for name in sorted(os.listdir(opened)):
                is_image = _is_image(name)
                try:
                    state = os.stat(name, dir_fd=opened)
                except OSError as error:
                    if is_image:
                        raise ValueError(
                            f"image {folder}/{name} cannot be read ({error.strerror}): mend or delete it."
                        ) from error
                    continue
                if is_image and stat.S_ISREG(state.st_mode):
                    self.names.append(prefix + name)
                    self._states += (state.st_size, state.st_mtime_ns, state.st_ctime_ns)
                    continue
                place = (state.st_dev, state.st_ino)
                # a folder may be called x.jpg
                if stat.S_ISDIR(state.st_mode) and not is_left_out(name) and place not in seen:
                    seen.add(place)
                    self._add(f"{folder}/{name}", f"{prefix}{name}/", seen)
        finally:
            os.close(opened)

    def summary(self) -> tuple[Names, NDArray[np.int64], str]:
        """Names, states (N, 3), and a digest of both."""
        names, states = Names.of(self.names), np.array(self._states, np.int64).reshape(-1, 3)
        return names, states, _digest(names, states)


def _digest(names: Names, states: NDArray[np.int64]) -> str:
    digest = hashlib.blake2b(names.text, digest_size=16)
    digest.update(states.tobytes())
    return digest.hexdigest()


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES) and not is_left_out(name)


def _is_text(name: str) -> bool:
    """Whether a file name is UTF-8 on disk; Python has put surrogates for bytes that are not."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _subfolders(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if path.is_dir() and not is_left_out(path.name)]
    return sorted(found, key=lambda path: class_order(path.name))


def _split_folders(root: str, folder: Path) -> dict[str, Path]:
    """Find the folders of class folders: train, val and test where they exist, else the root itself as "train"."""
    parts: dict[str, list[Path]] = {name: [] for name in SPLIT_FOLDERS}
    strangers: list[Path] = []
    for path in _subfolders(folder):
        parts.get(SPLIT_NAMES.get(path.name.lower(), ""), strangers).append(path)
    found = list(itertools.chain(*parts.values()))
    # A folder "train" without folders in it is a class of trains, and "valid" next to "invalid" is a class.
    has_splits = parts["train"] or not strangers or any(path.name.lower() in SPLIT_FOLDERS for path in found)
    if not has_splits or not any(map(_subfolders, found)):
        _refuse_splits(root, folder)
        return {"train": folder}
    if not parts["train"]:
        raise FileNotFoundError(
            f'data.root={root} has "{found[0].name}" but no folder "train": add it, with one folder per class.'
        )
    if strangers:
        raise ValueError(
            f"data.root={root} has folders beside train/ that nothing reads: {_listed(strangers)}. "
            "Only train/, val/ and test/ are read: rename or move the others."
        )
    for name, paths in parts.items():
        if len(paths) > 1:
            raise ValueError(f"data.root={root} has {len(paths)} folders for {name}: {_listed(paths)}. Keep one.")
    return {name: paths[0] for name, paths in parts.items() if paths}


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths)


def _refuse_splits(root: str, folder: Path) -> None:
    """Raise ValueError where class folders look like splits: no image of their own, and the same folders in each."""
    classes = _subfolders(folder)
    inner = [path.name for path in _subfolders(classes[0])] if len(classes) > 1 else []
    if len(inner) > 1 and all(
        [each.name for each in _subfolders(path)] == inner and not any(_is_image(each.name) for each in path.iterdir())
        for path in classes
    ):
        raise ValueError(
            f"data.root={root} has folders without an image of their own, and the same folders in each: "
            f"{_listed(classes)}. If they are splits, name them train, val and test, or give the one to train on: "
            f"data.root={root}/{classes[0].name}. If they are classes, move their images up into them."
        )


def _check_counts(root: str, folders: dict[str, Path], counts: dict[str, dict[str, int]]) -> None:
    for name, by_class in counts.items():
        if not by_class:
            raise FileNotFoundError(
                f"data.root={root} has no class folders in {folders[name]}: looked for train/, val/ or test/ with one "
                "folder per class, or one folder per class."
            )
    empty = [str(folders["train"] / label) for label, count in counts["train"].items() if not count]
    empty += [str(folders[name]) for name in ("val", "test") if name in counts and not any(counts[name].values())]
    if empty:
        raise ValueError(
            f"data.root={root} has folders without an image ({', '.join(IMAGE_SUFFIXES)}): {', '.join(empty)}. "
            "Add images or delete the folders."
        )


def _check_classes(root: str, folders: dict[str, Path], counts: dict[str, dict[str, int]]) -> None:
    train = counts["train"]
    odd = sorted({os.fsencode(name) for names in counts.values() for name in names if not _is_text(name)})
    if odd:
        raise ValueError(
            f"data.root={root} has class folders whose names are no UTF-8: {', '.join(map(repr, odd))}. Rename them: "
            "tables, pictures and predictions name the classes."
        )
    if len(train) < 2:
        raise ValueError(
            f"data.root={root} has one class only, {', '.join(train)}: add the other classes, or give the folder that "
            "holds one folder per class."
        )
    for name, by_class in counts.items():
        unknown = sorted(by_class.keys() - train.keys())
        if unknown:
            raise ValueError(
                f"data.root={root} has classes in {folders[name].name}/ that {folders['train'].name}/ lacks: "
                f"{', '.join(unknown)}. Add training images of them, or delete their folders."
            )

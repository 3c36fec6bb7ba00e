"""List the image files of a folder, with their classes and states, without importing torch."""

import contextlib
import functools
import hashlib
import itertools
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.runs.files import read_json
from lockstep.system.text import join_names, plural, similar_names

IMAGE_SUFFIXES = (
    ".apng",
    ".avif",
    ".bmp",
    ".gif",
    ".j2k",
    ".jfif",
    ".jp2",
    ".jpe",
    ".jpeg",
    ".jpg",
    ".jpx",
    ".pbm",
    ".pgm",
    ".png",
    ".pnm",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
)
HEIF_HINT, CONVERT_HINT = "install pi-heif (pip install pi-heif)", "convert them, e.g. to JPEG"
ADD_CLASSES = "Add training images of them, or delete their folders."
NO_WIDTH = r"[\u200b\u2060\ufeff]"  # blanks of zero width
HEIF_SUFFIXES = (".heic", ".heif", ".hif")  # These are read if pi-heif is installed.
# Images of these types are never read. Most are raw files of cameras, and Pillow would decode the
# preview in them.
UNREAD_SUFFIXES = (
    ".3fr",
    ".arw",
    ".cr2",
    ".cr3",
    ".dng",
    ".erf",
    ".exr",
    ".jxl",
    ".jxr",
    ".kdc",
    ".mrw",
    ".nef",
    ".nrw",
    ".orf",
    ".pef",
    ".psd",
    ".raf",
    ".raw",
    ".rw2",
    ".sr2",
    ".srw",
    ".svg",
    ".tga",
    ".x3f",
)
# These folders contain thumbnails, metadata of archives, and deleted files.
SYSTEM_FOLDERS = ("@eaDir", "__MACOSX", "#recycle", "@Recycle", "$RECYCLE.BIN")
# The record of a copied folder is next to it. It has the source, its digest, and a digest of the
# copied files.
COPY_RECORD = ".copied"
Integers = NDArray[np.int64]
State = tuple[int, int, int]  # bytes, mtime_ns, ctime_ns
UNREADABLE: State = (0, 0, 0)  # of an image without a state, such as a broken link
SPLIT_FOLDERS = ("train", "val", "test")
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Image files in a fixed order, with their targets and states.

    `setting` identifies the files in messages. `names` (N) are paths below `folder`. `targets`
    (N, ...) are those of the task. `splits` has the int64 positions of each split. `states` (N, 3)
    has size in bytes, mtime_ns and ctime_ns of each file. `groups` (N) are as in `Images`. `dates`
    (N) is None if the dates are in EXIF data. `digest` changes whenever a file is added, removed,
    renamed or written. `origin` is the path of the folder or list. A copy has the digest and origin
    of its source, so that both use the same cache.
    """

    setting: str
    folder: Path
    names: list[str]
    states: Integers
    digest: str
    origin: str
    targets: NDArray[Any]
    class_names: tuple[str, ...]
    splits: dict[str, Integers]
    groups: list[str] | None = None
    dates: list[str] | None = None


def list_classes(
    root: str, group: str | int | None = None, *, is_other: bool = False
) -> ImageTable:
    """List the images of `root/{train,val,test}/<class>/`, or of `root/<class>/`.

    Without split folders, all images are "train". Split folders can have any of the names in
    `SPLIT_NAMES`, in upper or lower case. val and test may lack classes. Hidden and system folders
    are skipped. `group` is that of `group_names`, and is matched with paths that start at the
    class. `is_other` marks data that is not the data of the training. Such data may have only one
    class, and images without a group are groups of their own. Raises FileNotFoundError or
    ValueError.
    """
    folder, split_folders = class_folders(root, min_classes=1 if is_other else 2)
    files: dict[str, State] = {}
    splits: dict[str, Integers] = {}
    empty_folders, unread = [], []
    for split, folders in split_folders.items():
        first_row = len(files)
        for class_folder in folders:
            class_images = _images_below(class_folder, folder, unread)
            files |= class_images
            if split == "train" and not class_images:
                empty_folders.append(class_folder)
        if split != "train" and len(files) == first_row:
            empty_folders.append(folders[0].parent)
        splits[split] = np.arange(first_row, len(files))
    setting = f"data.root={root}"
    class_names = strip_names(setting, [path.name for path in split_folders["train"]])
    print_unread(setting, unread)
    parents = {folder, *(folders[0].parent for folders in split_folders.values())}
    strays = [
        path.name
        for path in itertools.chain(*map(Path.iterdir, parents))
        if is_image(path.name) and path.is_file()
    ]
    if strays:
        _print_once(
            f"{setting}: {plural(len(strays), 'image')} outside of the class folders are not read, "
            f"such as {min(strays)}: move them into a class folder"
        )
    unreadable_names = [name for name, state in files.items() if state == UNREADABLE]
    if unreadable_names:
        raise ValueError(
            f"{setting} has images that cannot be read: {join_names(unreadable_names)}. "
            "Fix or delete them."
        )
    if empty_folders:
        raise ValueError(
            f"{setting} has folders without an image: {', '.join(map(str, empty_folders))}. Add "
            f"images ({', '.join(image_suffixes())}) or delete them."
        )
    names, states = list(files), np.array(list(files.values()), np.int64)
    has_split_folders = split_folders["train"][0].parent != folder
    paths = [name.partition("/")[2] for name in names] if has_split_folders else names
    groups = group_names(setting, group, paths, names if is_other else None)
    numbers = {name: number for number, name in enumerate(sorted({*class_names}, key=class_order))}
    labels = [numbers[strip_blanks(path.partition("/")[0])] for path in paths]
    record = read_record(folder, names, states)
    return ImageTable(
        setting,
        folder,
        names,
        states,
        digest=record.get("digest", digest_of(names, states)),
        origin=record.get("origin", str(folder.resolve())),
        targets=np.array(labels),
        # A name that is not UTF-8 becomes text that fonts, JSON and ONNX accept, such as caf\xe9.
        class_names=tuple(os.fsencode(name).decode(errors="backslashreplace") for name in numbers),
        splits=splits,
        groups=groups,
    )


def group_names(
    setting: str,
    group: str | int | None,
    paths: Sequence[str],
    singles: Sequence[str] | None = None,
) -> list[str] | None:
    r"""Return what the first bracket of the regular expression `group` finds in each path.

    An integer `group` stands for the folders of so many levels below the first folder, the class.
    Returns None if `group` is None. If the expression finds nothing, the group is the name of the
    image in `singles`. Raises ValueError if `group` cannot be used, or if it finds nothing and
    `singles` is None.
    """
    if group is None:
        return None
    try:
        pattern = re.compile(
            rf"^[^/]+/((?:[^/]+/){{{group - 1}}}[^/]+)/" if isinstance(group, int) else group
        )
        groups = [(match and match[1]) or "" for match in map(pattern.search, paths)]
    except (re.error, IndexError) as error:
        raise ValueError(
            f"data.group={group} is not a regular expression with a bracket (...) around the "
            f"group ({error}): correct it, such as '^[^/]+/(\\w+?)_'."
        ) from error
    if "" in groups:
        problem = (
            f"data.group={group} finds no group for {groups.count(''):,} of {len(paths):,} images "
            f"of {setting}, such as {paths[groups.index('')]}"
        )
        if singles is None:
            raise ValueError(f"{problem}: correct it, rename the files, or set it to null.")
        _print_once(f"{problem}: each is a group of its own")
        groups = [name or single for name, single in zip(groups, singles, strict=True)]
    return strip_names(f"{setting}, data.group={group}", groups, "groups")


def states_of(folder: Path, names: Sequence[str]) -> tuple[Integers, list[int]]:
    """Return the states (N, 3) of the files `names` below `folder`, and missing positions."""
    states = np.zeros((len(names), 3), np.int64)
    missing = []
    for position, name in enumerate(names):
        with contextlib.suppress(OSError, ValueError):  # A NUL in a path raises ValueError.
            state = os.stat(folder / name)
            states[position] = _state(state)
            if stat.S_ISREG(state.st_mode):
                continue
        missing.append(position)
    return states, missing


def real_names(folder: Path, names: Sequence[str], states: Integers) -> list[str]:
    """Return one name for each file, the smallest if several paths or links lead to it."""
    _, numbers, counts = np.unique(states[:, 2], return_inverse=True, return_counts=True)
    rows = np.flatnonzero(counts[numbers] > 1).tolist()  # The names of a file share its ctime_ns.
    names_by_path, originals = {}, list(names)
    for row in sorted(rows, key=names.__getitem__):
        path = os.path.realpath(folder / names[row])
        originals[row] = names_by_path.setdefault(path, names[row])
    return originals


def digest_of(names: Sequence[str], states: NDArray[Any]) -> str:
    """Return a digest of the names, of the states or targets, and of their order."""
    encoded_names = os.fsencode("".join([f"{name}\0" for name in names]))
    return hashlib.blake2b(encoded_names + states.tobytes(), digest_size=16).hexdigest()


def list_images(folder: Path) -> list[str]:
    """List the images below a folder, and print how many other files are not read."""
    unread = []
    names = list(_images_below(folder, folder, unread))
    print_unread(str(folder), unread)
    return names


def read_record(folder: Path, names: Sequence[str], states: Integers) -> dict[str, str]:
    """Return `origin` and `digest` of the source of a copy.

    The result is empty if the folder is not a copy, or if it has changed.
    """
    record = read_json(folder.absolute().parent / COPY_RECORD)
    is_same = record and record["files"] == copied_digest(names, states[:, :2].tolist())
    return record if is_same else {}


def copied_digest(names: Sequence[str], states: Sequence[Sequence[object]]) -> str:
    """Return a digest of names and states that does not depend on their order."""
    files = dict(zip(map(os.path.normpath, names), states, strict=True))
    return hashlib.blake2b(repr(sorted(files.items())).encode(), digest_size=16).hexdigest()


def is_image(path: str) -> bool:
    """Return whether a name or relative path belongs to an image that is read."""
    return path.lower().endswith(image_suffixes()) and not any(map(is_skipped, path.split("/")))


def is_skipped(name: str) -> bool:
    """Return whether a file or folder is hidden, or belongs to the system and not to the user."""
    return name.startswith(".") or name in SYSTEM_FOLDERS


@functools.cache
def has_heif() -> bool:
    return find_spec("pi_heif") is not None


def image_suffixes() -> tuple[str, ...]:
    return IMAGE_SUFFIXES + HEIF_SUFFIXES * has_heif()


def print_unread(setting: str, names: Sequence[str]) -> None:
    """Print how many files look like images but are not read, by type, and how to fix it."""
    suffixes = [os.path.splitext(name)[1].lower() for name in names if not is_skipped(name)]
    counts = Counter(suffix for suffix in suffixes if suffix in HEIF_SUFFIXES + UNREAD_SUFFIXES)
    if counts:
        kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in counts.most_common())
        hint = f"{HEIF_HINT} or " if counts.keys() & {*HEIF_SUFFIXES} else ""
        _print_once(
            f"{setting}: {plural(counts.total(), 'file')} not read, {kinds}: {hint}{CONVERT_HINT}"
        )


def class_order(name: str) -> tuple[float, str]:
    """Return the sort key of a class name, which sorts integers by value, then other names."""
    return (int(name), name) if name.removeprefix("-").isdecimal() else (math.inf, name)


def strip_blanks(name: str) -> str:
    """Strip blanks at both ends, and blanks of zero width anywhere, unless nothing would remain."""
    return re.sub(NO_WIDTH, "", name).strip() or name


def strip_names(setting: str, names: Sequence[str], noun: str = "class names") -> list[str]:
    """Strip blanks from names with `strip_blanks`, and print which names had them."""
    padded_names = [repr(name) for name in dict.fromkeys(names) if name != strip_blanks(name)]
    if padded_names:
        _print_once(
            f"{setting}: blanks at the ends of {noun}, and those of no width, "
            f"are ignored: {join_names(padded_names)}"
        )
    return list(map(strip_blanks, names))


@functools.cache
def _print_once(line: str) -> None:
    print(line, flush=True)  # A source is listed again for a copy, and for each fold of a check.


def require_path(root: str, setting: str) -> Path:
    """Return the path of `root`.

    Raises FileNotFoundError with `setting`, such as data.root=images, if it does not exist.
    """
    path = Path(root).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{setting} does not exist (from {Path.cwd()}): correct the path.")
    return path


def require_folder(root: str) -> Path:
    """Return the path of data.root.

    Raises FileNotFoundError if it does not exist, and ValueError if it is a file.
    """
    folder = require_path(root, f"data.root={root}")
    if folder.is_file():
        raise ValueError(
            f"data.root={root} is a file: give a folder, or a list by data=list data.file=..."
        )
    return folder


def _images_below(folder: Path, root: Path, unread: list[str]) -> dict[str, State]:
    """Return the states of the images below `folder`, by their paths below `root`.

    They are sorted by the components of these paths. The names of other files are added to
    `unread`.
    """
    # Links to folders are followed, and could lead in a circle or to images that are already
    # listed.
    above = {folder, *folder.absolute().parents, *folder.resolve().parents}
    prefix = "" if folder == root else f"{folder.relative_to(root)}/"
    inodes = {(state.st_dev, state.st_ino) for state in map(os.stat, above)}
    return dict(_walk(str(folder), prefix, inodes, unread))


def _walk(
    folder: str, prefix: str, inodes: set[tuple[int, int]], unread: list[str]
) -> Iterator[tuple[str, State]]:
    for name in sorted(os.listdir(folder)):
        path, is_read = f"{folder}/{name}", is_image(name)
        try:
            state = os.stat(path)
        except OSError:
            if is_read:
                yield prefix + name, UNREADABLE
            continue
        inode = (state.st_dev, state.st_ino)
        if is_read and stat.S_ISREG(state.st_mode):
            yield prefix + name, _state(state)
        # A folder can have a name such as x.jpg.
        elif stat.S_ISDIR(state.st_mode) and not is_skipped(name) and inode not in inodes:
            inodes.add(inode)
            yield from _walk(path, f"{prefix}{name}/", inodes, unread)
        elif stat.S_ISREG(state.st_mode):
            unread.append(name)


def _state(state: os.stat_result) -> State:
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _subfolders(folder: Path) -> list[Path]:
    folders = [path for path in folder.iterdir() if path.is_dir() and not is_skipped(path.name)]
    return sorted(folders, key=lambda path: class_order(path.name))


def _split_folders(root: str, folder: Path) -> dict[str, Path]:
    """Find the folders of the splits, or return the root as "train" if it has none."""
    folders_by_split: dict[str, list[Path]] = {split: [] for split in SPLIT_FOLDERS}
    other_folders: list[Path] = []
    for path in _subfolders(folder):
        folders_by_split.get(SPLIT_NAMES.get(path.name.lower(), ""), other_folders).append(path)
    split_folders = list(itertools.chain(*folders_by_split.values()))
    # A folder "train" without subfolders is a class of trains, and "valid" next to "invalid" is a
    # class, too.
    has_splits = (
        folders_by_split["train"]
        or not other_folders
        or any(path.name.lower() in SPLIT_FOLDERS for path in split_folders)
    )
    if not has_splits or not any(map(_subfolders, split_folders)):
        _refuse_splits(root, folder)
        return {"train": folder}
    if not folders_by_split["train"]:
        raise FileNotFoundError(
            f'data.root={root} has "{split_folders[0].name}" but no folder "train": '
            "add it, with one folder per class."
        )
    if other_folders:
        raise ValueError(
            f"data.root={root} has folders next to train/ that are not read, "
            f"{_join_paths(other_folders)}: only train/, val/ and test/ are, rename or move the "
            "others."
        )
    for split, paths in folders_by_split.items():
        if len(paths) > 1:
            raise ValueError(
                f"data.root={root} has {len(paths)} folders for {split}: "
                f"{_join_paths(paths)}. Keep one."
            )
    return {split: paths[0] for split, paths in folders_by_split.items() if paths}


def _join_paths(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths)


def _refuse_splits(root: str, folder: Path) -> None:
    """Raise ValueError if class folders look like splits.

    They do if no images are directly in them, and all of them have the same subfolders.
    """
    classes = _subfolders(folder)
    names = {tuple(child.name for child in _subfolders(path)) for path in classes}
    if len(classes) < 2 or len(names) > 1 or len(names.pop()) < 2:
        return
    if not any(is_image(child.name) for path in classes for child in path.iterdir()):
        raise ValueError(
            f"data.root={root} has the same folders and no image in each of "
            f"{_join_paths(classes)}: name them train, val, test, give one, "
            f"{root}/{classes[0].name}, or move images up."
        )


def class_folders(root: str, min_classes: int = 2) -> tuple[Path, dict[str, list[Path]]]:
    """Return the folder, and the class folders of each split in order.

    Raises FileNotFoundError or ValueError.
    """
    folder = require_folder(root)
    split_folders = _split_folders(root, folder)
    classes = {split: _subfolders(path) for split, path in split_folders.items()}
    empty_folders = [str(split_folders[split]) for split, paths in classes.items() if not paths]
    if empty_folders:
        raise FileNotFoundError(
            f"data.root={root} has no class folders in {', '.join(empty_folders)}: give one "
            "folder per class, or train/, val/ or test/ with them."
        )
    train_classes = [*dict.fromkeys(strip_blanks(path.name) for path in classes["train"])]
    if len(train_classes) < min_classes:
        raise ValueError(
            f"data.root={root} has one class only, {train_classes[0]}: add the others, "
            "or give the folder that holds one folder per class."
        )
    for split, paths in classes.items():
        split_classes = {strip_blanks(path.name) for path in paths}
        unknown_classes = sorted(split_classes.difference(train_classes))
        if unknown_classes:
            missing_classes = [name for name in train_classes if name not in split_classes]
            alike = similar_names(unknown_classes + missing_classes)
            hint = f"Rename {alike} if they are one class." if alike else ADD_CLASSES
            raise ValueError(
                f"data.root={root} has classes in {split_folders[split].name}/ that "
                f"{split_folders['train'].name}/ lacks: {', '.join(unknown_classes)}. {hint}"
            )
    return folder, classes

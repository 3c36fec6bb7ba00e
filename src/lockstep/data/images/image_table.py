"""The image files of a folder, with their classes and states. No torch."""

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
from lockstep.system.wording import join_names, plural, similar_names

IMAGE_SUFFIXES = (
    *(".apng", ".avif", ".bmp", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".jpx"),
    *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
)
HEIF_HINT, CONVERT_HINT = "install pi-heif (pip install pi-heif)", "convert them, e.g. to JPEG"
NO_WIDTH = r"[\u200b\u2060\ufeff]"  # blanks
HEIF_SUFFIXES = (".heic", ".heif", ".hif")  # read where pi-heif is installed
# images that are never read, most of them raw files of cameras, whose previews Pillow would take
# for the image
UNREAD_SUFFIXES = (
    *(
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
    ),
    *(".pef", ".psd", ".raf", ".raw", ".rw2", ".sr2", ".srw", ".svg", ".tga", ".x3f"),
)
# thumbnails, archive metadata and trash
SYSTEM_FOLDERS = ("@eaDir", "__MACOSX", "#recycle", "@Recycle", "$RECYCLE.BIN")
# next to the folder of a copy: its origin, the digest there, and that of the copied files
COPY_RECORD = ".copied"
State = tuple[int, int, int]  # bytes, mtime_ns, ctime_ns
SPLIT_FOLDERS = ("train", "val", "test")
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Image files in a fixed order, with their targets and states. `setting` identifies them in messages.

    `names` (N) are paths below `folder`, `targets` (N, ...) those of the task, `splits` positions
    int64 by split, `states` (N, 3) bytes, mtime_ns and ctime_ns of each file, `groups` (N) as those
    of `Images`, and `dates` (N), None for those in EXIF data. `digest` changes with every file that
    is added, removed, renamed or written to. `origin` is the path of the folder or list. A copy has
    digest and origin of its source, so that both use one cache.
    """

    setting: str
    folder: Path
    names: list[str]
    states: NDArray[np.int64]
    digest: str
    origin: str
    targets: NDArray[Any]
    class_names: tuple[str, ...]
    splits: dict[str, NDArray[np.int64]]
    groups: list[str] | None = None
    dates: list[str] | None = None


def list_classes(
    root: str, group: str | int | None = None, *, is_other: bool = False
) -> ImageTable:
    """List the images of `root/{train,val,test}/<class>/`, or of `root/<class>/`, which are all "train" then.

    Split folders may have any of `SPLIT_NAMES`, in upper or lower case. val and test may lack
    classes. Hidden and system folders are skipped. `group` is that of `group_names`, of paths from
    the class on. Raises FileNotFoundError or ValueError. Data `is_other` than those of a training:
    one class is enough, and images without a group are groups of their own.
    """
    folder, split_folders = class_folders(root, least=1 if is_other else 2)
    files: dict[str, State] = {}
    labels: list[int] = []
    splits: dict[str, NDArray[np.int64]] = {}
    empty: list[str] = []
    paths: list[str] = []  # from the class on
    unread: list[str] = []
    class_names = strip_names(f"data.root={root}", [path.name for path in split_folders["train"]])
    numbers = {name: number for number, name in enumerate(sorted({*class_names}, key=class_order))}
    for split, folders in split_folders.items():
        first = len(files)
        for class_folder in folders:
            found = _images_below(class_folder, folder, unread)
            files |= found
            start = len(str(class_folder.relative_to(folder).parent / "_")) - 1
            paths += [name[start:] for name in found]
            labels += [numbers[strip_blanks(class_folder.name)]] * len(found)
            if split == "train" and not found:
                empty.append(str(class_folder))
        if split != "train" and len(files) == first:
            empty.append(str(folders[0].parent))
        splits[split] = np.arange(first, len(files))
    print_unread(f"data.root={root}", unread)
    if empty:
        hint = f"Add images ({', '.join(image_suffixes())}) or delete them."
        raise ValueError(
            f"data.root={root} has folders without an image: {', '.join(empty)}. {hint}"
        )
    names, states = list(files), np.array(list(files.values()), np.int64)
    copied = read_record(folder, names, states)
    digest, origin = (
        copied.get("digest", digest_of(names, states)),
        copied.get("origin", str(folder.resolve())),
    )
    # a name that is no UTF-8 becomes text that fonts, JSON and ONNX take: caf\xe9
    classes = tuple(os.fsencode(name).decode(errors="backslashreplace") for name in numbers)
    place = f"data.root={root}", folder, names, states, digest, origin
    groups = group_names(place[0], group, paths, names if is_other else None)
    return ImageTable(*place, np.array(labels), classes, splits, groups)


def group_names(
    setting: str,
    group: str | int | None,
    paths: Sequence[str],
    singles: Sequence[str] | None = None,
) -> list[str] | None:
    r"""Return what the first bracket of the regular expression `group` finds in each path; None without `group`.

    A number is short for so many folders below the first, the class. Where it finds nothing, the
    group is the text of the image in `singles`. Raises ValueError if it cannot be used, or finds
    nothing and there are no `singles`.
    """
    if group is None:
        return None
    try:
        pattern = re.compile(
            rf"^[^/]+/((?:[^/]+/){{{group - 1}}}[^/]+)/" if isinstance(group, int) else group
        )
        found = [match[1] or "" if (match := pattern.search(path)) else "" for path in paths]
    except (re.error, IndexError) as error:
        problem = f"is not a regular expression with a bracket (...) around the group ({error})"
        raise ValueError(
            rf"data.group={group} {problem}: correct it, such as '^[^/]+/(\w+?)_'."
        ) from error
    if "" in found:
        count = f"{found.count(''):,} of {len(paths):,} images of {setting}, such as {paths[found.index('')]}"
        hint = "correct it, rename the files, or set it to null"
        if singles is None:
            raise ValueError(f"data.group={group} finds no group for {count}: {hint}.")
        _print_once(f"data.group={group} finds no group for {count}: each is a group of its own")
        found = [name or single for name, single in zip(found, singles, strict=True)]
    return strip_names(f"{setting}, data.group={group}", found, "groups")


def states_of(folder: Path, names: Sequence[str]) -> tuple[NDArray[np.int64], list[int]]:
    """Return the states (N, 3) of the files `names` below `folder`, and the positions of missing ones."""
    states = np.zeros((len(names), 3), np.int64)
    missing = []
    for position, name in enumerate(names):
        try:
            state = os.stat(folder / name)
        except (OSError, ValueError):  # ValueError: of a NUL in a path
            missing.append(position)
            continue
        states[position] = _state(state)
        if not stat.S_ISREG(state.st_mode):
            missing.append(position)
    return states, missing


def real_names(folder: Path, names: Sequence[str], states: NDArray[np.int64]) -> list[str]:
    """Return one name for each file: the least of its names, if paths or links name it more than once."""
    _, numbers, counts = np.unique(states[:, 2], return_inverse=True, return_counts=True)
    rows = np.flatnonzero(counts[numbers] > 1).tolist()  # those of one file have one ctime_ns
    rows.sort(key=lambda row: names[row], reverse=True)
    paths = {row: os.path.realpath(folder / names[row]) for row in rows}
    least = {path: names[row] for row, path in paths.items()}
    return [least[paths[row]] if row in paths else name for row, name in enumerate(names)]


def digest_of(names: Sequence[str], states: NDArray[Any]) -> str:
    """Digest of names, states or targets, and their order."""
    text = os.fsencode("".join([f"{name}\0" for name in names]))
    return hashlib.blake2b(text + states.tobytes(), digest_size=16).hexdigest()


def list_images(folder: Path) -> list[str]:
    """List the images below a folder, and print how many others are not read."""
    unread: list[str] = []
    names = list(_images_below(folder, folder, unread))
    print_unread(str(folder), unread)
    return names


def read_record(folder: Path, names: Sequence[str], states: NDArray[np.int64]) -> dict[str, str]:
    """Return `origin` and `digest` of the source of a copy; empty for another or a changed folder."""
    record = read_json(folder.absolute().parent / COPY_RECORD)
    return (
        record if record and record["files"] == copied_digest(names, states[:, :2].tolist()) else {}
    )


def copied_digest(names: Sequence[str], states: Sequence[Sequence[object]]) -> str:
    """Digest of names and states, in any order."""
    files = dict(zip(map(os.path.normpath, names), states, strict=True))
    return hashlib.blake2b(repr(sorted(files.items())).encode(), digest_size=16).hexdigest()


def is_image(path: str) -> bool:
    """Return whether a name or relative path is that of an image that is read."""
    return path.lower().endswith(image_suffixes()) and not any(map(is_skipped, path.split("/")))


def is_skipped(name: str) -> bool:
    """Return whether a file or folder is hidden, or one of a system and not of the user."""
    return name.startswith(".") or name in SYSTEM_FOLDERS


@functools.cache
def has_heif() -> bool:
    return find_spec("pi_heif") is not None


def image_suffixes() -> tuple[str, ...]:
    return IMAGE_SUFFIXES + HEIF_SUFFIXES * has_heif()


def print_unread(setting: str, names: Sequence[str]) -> None:
    """Print how many of these files look like images that are not read, by type, and what to do."""
    suffixes = [os.path.splitext(name)[1].lower() for name in names if not is_skipped(name)]
    counts = Counter(suffix for suffix in suffixes if suffix in HEIF_SUFFIXES + UNREAD_SUFFIXES)
    if counts:
        kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in counts.most_common())
        hint = f"{HEIF_HINT} or " if counts.keys() & {*HEIF_SUFFIXES} else ""
        _print_once(
            f"{setting}: {plural(counts.total(), 'file')} not read, {kinds}: {hint}{CONVERT_HINT}"
        )


def class_order(name: str) -> tuple[float, str]:
    """Sort key of class names: whole numbers by value, then texts."""
    return (int(name), name) if name.removeprefix("-").isdecimal() else (math.inf, name)


def strip_blanks(name: str) -> str:
    """Strip blanks at the ends, and those of no width anywhere, unless there is nothing else."""
    return re.sub(NO_WIDTH, "", name).strip() or name


def strip_names(setting: str, names: Sequence[str], what: str = "class names") -> list[str]:
    """Strip the ends of names, and print which had blanks."""
    changed = [repr(name) for name in dict.fromkeys(names) if name != strip_blanks(name)]
    if changed:
        _print_once(
            f"{setting}: blanks at the ends of {what}, and those of no width, are ignored: {join_names(changed)}"
        )
    return list(map(strip_blanks, names))


@functools.cache
def _print_once(line: str) -> None:
    print(line, flush=True)  # a source is listed again for a copy, and for each fold of a check


def require_path(root: str, setting: str) -> Path:
    """Return the path. Raises FileNotFoundError with `setting`, such as data.root=images, if it does not exist."""
    path = Path(root).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{setting} does not exist (from {Path.cwd()}): correct the path.")
    return path


def require_folder(root: str) -> Path:
    """Return the path of data.root. Raises FileNotFoundError if it does not exist, ValueError if it is a file."""
    folder = require_path(root, f"data.root={root}")
    if folder.is_file():
        raise ValueError(
            f"data.root={root} is a file: give a folder, or a list by data=list data.file=..."
        )
    return folder


def _images_below(folder: Path, root: Path, unread: list[str]) -> dict[str, State]:
    """States of the images below `folder` by their paths below `root`, sorted by the parts of these paths.

    Names of other files are added to `unread`.
    """
    # links to folders are followed: one could lead in a circle, or to images that are already
    # listed
    above = {folder, *folder.absolute().parents, *folder.resolve().parents}
    prefix = "" if folder == root else f"{folder.relative_to(root)}/"
    seen = {(state.st_dev, state.st_ino) for state in map(os.stat, above)}
    return dict(_walk(str(folder), prefix, seen, unread))


def _walk(
    folder: str, prefix: str, seen: set[tuple[int, int]], unread: list[str]
) -> Iterator[tuple[str, State]]:
    for name in sorted(os.listdir(folder)):
        path, is_read = f"{folder}/{name}", is_image(name)
        try:
            state = os.stat(path)
        except OSError as error:
            if is_read:
                raise ValueError(
                    f"image {path} cannot be read ({error.strerror}): fix or delete it."
                ) from error
            continue
        inode = (state.st_dev, state.st_ino)
        if is_read and stat.S_ISREG(state.st_mode):
            yield prefix + name, _state(state)
        # a folder may be called x.jpg
        elif stat.S_ISDIR(state.st_mode) and not is_skipped(name) and inode not in seen:
            seen.add(inode)
            yield from _walk(path, f"{prefix}{name}/", seen, unread)
        elif stat.S_ISREG(state.st_mode):
            unread.append(name)


def _state(state: os.stat_result) -> State:
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _subfolders(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if path.is_dir() and not is_skipped(path.name)]
    return sorted(found, key=lambda path: class_order(path.name))


def _split_folders(root: str, folder: Path) -> dict[str, Path]:
    """Find the folders of splits: train, val and test if they exist, else the root itself as "train"."""
    parts: dict[str, list[Path]] = {name: [] for name in SPLIT_FOLDERS}
    others: list[Path] = []
    for path in _subfolders(folder):
        parts.get(SPLIT_NAMES.get(path.name.lower(), ""), others).append(path)
    found = list(itertools.chain(*parts.values()))
    # a folder "train" without folders in it is a class of trains, and "valid" next to "invalid" is
    # a class
    has_splits = (
        parts["train"] or not others or any(path.name.lower() in SPLIT_FOLDERS for path in found)
    )
    if not has_splits or not any(map(_subfolders, found)):
        _refuse_splits(root, folder)
        return {"train": folder}
    if not parts["train"]:
        hint = "add it, with one folder per class"
        raise FileNotFoundError(
            f'data.root={root} has "{found[0].name}" but no folder "train": {hint}.'
        )
    if others:
        names, hint = (
            _join_paths(others),
            "only train/, val/ and test/ are, rename or move the others",
        )
        raise ValueError(
            f"data.root={root} has folders next to train/ that are not read, {names}: {hint}."
        )
    for name, paths in parts.items():
        if len(paths) > 1:
            raise ValueError(
                f"data.root={root} has {len(paths)} folders for {name}: {_join_paths(paths)}. Keep one."
            )
    return {name: paths[0] for name, paths in parts.items() if paths}


def _join_paths(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths)


def _refuse_splits(root: str, folder: Path) -> None:
    """Raise ValueError if class folders look like splits: no images directly in them, and the same folders in each."""
    classes = _subfolders(folder)
    inner = [path.name for path in _subfolders(classes[0])] if len(classes) > 1 else []
    if len(inner) > 1 and all(
        [each.name for each in _subfolders(path)] == inner
        and not any(is_image(each.name) for each in path.iterdir())
        for path in classes
    ):
        problem = f"has the same folders and no image in each of {_join_paths(classes)}"
        hint = f"name them train, val, test, give one, {root}/{classes[0].name}, or move images up"
        raise ValueError(f"data.root={root} {problem}: {hint}.")


def class_folders(root: str, least: int = 2) -> tuple[Path, dict[str, list[Path]]]:
    """Return the folder, and the class folders of each split in order. Raises FileNotFoundError or ValueError."""
    folder = require_folder(root)
    split_folders = _split_folders(root, folder)
    classes = {split: _subfolders(path) for split, path in split_folders.items()}
    names = {
        split: [*dict.fromkeys(strip_blanks(path.name) for path in paths)]
        for split, paths in classes.items()
    }
    if lacking := [str(split_folders[split]) for split, paths in classes.items() if not paths]:
        hint = "give one folder per class, or train/, val/ or test/ with them"
        raise FileNotFoundError(
            f"data.root={root} has no class folders in {', '.join(lacking)}: {hint}."
        )
    if len(names["train"]) < least:
        hint = "add the others, or give the folder that holds one folder per class"
        raise ValueError(f"data.root={root} has one class only, {names['train'][0]}: {hint}.")
    for split, part in names.items():
        if unknown := sorted(set(part) - set(names["train"])):
            where = f"{split_folders[split].name}/ that {split_folders['train'].name}/ lacks"
            alike = similar_names(
                [*unknown, *(name for name in names["train"] if name not in part)]
            )
            hint = "Add training images of them, or delete their folders."
            hint = f"Rename {alike} if they are one class." if alike else hint
            raise ValueError(
                f"data.root={root} has classes in {where}: {', '.join(unknown)}. {hint}"
            )
    return folder, classes

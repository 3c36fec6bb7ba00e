"""A record of the images of a run, which is compared when the run is used again.

It contains names, targets, groups, splits and contents. Contents are the sizes of all files, and
hashes of parts of some files.
"""

import gzip
import hashlib
import heapq
import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.assembly.session import Session
from lockstep.data.splits import Splits
from lockstep.runs.files import atomic_file, read_json
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import display_path
from lockstep.system.output import print_error
from lockstep.system.text import join_names, plural

if TYPE_CHECKING:
    from lockstep.data.images.image_table import ImageTable

# A record has class_names, names and targets of each split, groups if known, and contents if images
# are files.
Record = dict[str, Any]
# Contents are the bytes of each file, and hashes of some files, by name.
Contents = tuple[dict[str, int], dict[str, str]]
# Hashes of this many files detect a data set of other images, where every file differs. Sizes
# detect single files that were replaced.
NUM_HASHED = 1000
SPLITS = ("train", "val", "test")
# Bytes at the start, in the middle and at the end of a file are hashed: one disk page each.
PART = 4096
NUM_THREADS = 16  # number of threads, which wait for a network


class Overlap(NamedTuple):
    """Names that other images share with a run.

    `trained` has the sorted names of images it was trained on. `replaced` has the names of files
    known to have other contents.
    """

    num_trained: int
    trained: list[str]
    replaced: list[str]


def keep(session: Session, images: Splits, run: RunFolder) -> None:
    """Write the record of a run. Every rank must call it."""
    session.on_rank_0(lambda: _write(run, record_of(images)))


def compare(session: Session, images: Splits, run: RunFolder, *, is_new: bool = False) -> None:
    """Check that images are those of the run. Every rank must call it.

    With changed_data=accept, print the changes instead. A run that `is_new` may have no record.
    Raises ConfigError.
    """

    def work() -> None:
        if is_new and not run.images.exists():
            return
        old, new = read(run), record_of(images)
        changes = ["its images were not recorded"] if old is None else differences(old, new)
        if not changes:
            return
        message = f"the data of {display_path(run.path)} changed: {'; '.join(changes)}"
        if old is not None and len(old["class_names"]) != len(new["class_names"]):
            raise ValueError(
                f"{message}. Its network has a different number of outputs: restore the data, "
                "or train a new run"
            )
        if session.config.changed_data == "refuse":
            raise ValueError(
                f"{message}. Restore the data, or add changed_data=accept "
                "to use them as they are now"
            )
        print_error(f"changed_data=accept: {message}")

    session.on_rank_0(work)


def record_of(images: Splits) -> Record:
    """Return the record of images.

    It has the class names, the names, targets and groups of each split, and the contents of files.
    """
    subsets, record = images.by_name, Record(class_names=list(images.class_names))
    for split, subset in subsets.items():
        record[split] = {"names": list(subset.names), "targets": subset.targets.tolist()}
    if any(subset.groups is not None for subset in subsets.values()):
        record["groups"] = {
            split: list(map(str, subset.groups or ())) for split, subset in subsets.items()
        }
    if images.files is not None:
        sizes, hashes = contents_of(images.files)
        image_names = [name for subset in subsets.values() for name in subset.names]
        record["contents"] = {"sizes": [sizes[name] for name in image_names], "hashes": hashes}
    return record


def _write(run: RunFolder, record: Record) -> None:
    with atomic_file(run.images) as file:
        file.write(gzip.compress(json.dumps(record).encode(), compresslevel=3, mtime=0))


def overlap(run: RunFolder, table: "ImageTable") -> Overlap | None:
    """Compare images with those of a run, by name and contents.

    Returns None if the images are those of the run. All names are then the same, and at most half
    of the files have other contents. The images may still have changed, which `compare` checks.
    Also returns None if the run has no record.
    """
    record = read(run)
    if record is None:
        return None
    run_contents, table_contents = _contents(record), contents_of(table)
    image_names = {*table.names}
    trained_names = {*record["train"]["names"]}
    num_trained = len(trained_names)
    compared_names = run_contents[1].keys() & table_contents[1].keys()
    replaced_names = _replaced_names(run_contents, table_contents)
    if 2 * len(replaced_names & compared_names) > len(compared_names):
        trained_names &= compared_names  # For the other files, only the sizes are the same.
    elif image_names == _named_rows(record).keys():
        contents = "most contents" if replaced_names else "contents"
        basis = (
            f"names and {contents}"
            if compared_names
            else "names (their contents were not recorded)"
        )
        print(
            f"{table.setting} is taken for the data of the run: its images have the same {basis}",
            flush=True,
        )
        return None
    return Overlap(
        num_trained, sorted(trained_names & image_names - replaced_names), sorted(replaced_names)
    )


def differences(old_record: Record, new_record: Record) -> list[str]:
    """Describe each type of change from one record to another, with a count and an example.

    The result is empty without changes.
    """
    # Records of old runs lack contents and groups.
    if all(old_record[key] == new_record[key] for key in old_record.keys() & new_record.keys()):
        return []
    descriptions: list[str] = []
    old_classes, classes = old_record["class_names"], new_record["class_names"]
    if old_classes != classes:
        pairs = [
            f"{old} is now {new}"
            for old, new in zip(old_classes, classes, strict=False)
            if old != new
        ]
        counts = f"{plural(len(old_classes), 'class', 'classes')}, now {len(classes)}"
        descriptions.append(f"classes in their order: {join_names(pairs) or counts}")
    old_rows, rows = _named_rows(old_record), _named_rows(new_record)
    shared_names = [name for name in old_rows if name in rows]
    replaced_names = _replaced_names(_contents(old_record), _contents(new_record))
    kinds = {
        "added": [name for name in rows if name not in old_rows],
        "removed": [name for name in old_rows if name not in rows],
        "moved to another split": [
            name for name in shared_names if old_rows[name][0] != rows[name][0]
        ],
        "with another target": [
            name for name in shared_names if old_rows[name][1] != rows[name][1]
        ],
        "with another group": [
            name for name in shared_names if old_rows[name][2] not in (None, rows[name][2])
        ],
        "with other contents": [name for name in shared_names if name in replaced_names],
    }
    descriptions += [
        f"{plural(len(image_names), 'image')} {kind}, such as {image_names[0]}"
        for kind, image_names in kinds.items()
        if image_names
    ]
    return descriptions or ["the order of its images, or how often one is listed"]


def recorded_splits(run: RunFolder) -> dict[str, str] | None:
    """Return the split of each image in the record of a run, by name.

    Returns None without a record. Raises ValueError if the record is damaged.
    """
    record = read(run)
    return record and {name: split for name, (split, *_) in _named_rows(record).items()}


def _named_rows(record: Record) -> dict[str, tuple[str, Any, str | None]]:
    """Return the split, the target and the known group of each image.

    A target that is a class is given by its name.
    """
    classes: Any = list(record["class_names"])
    rows = {}
    for split in SPLITS:
        names, targets = record[split]["names"], record[split]["targets"]
        blanks = [None] * len(names)  # A Dataset has no targets here.
        groups = record.get("groups", {}).get(split) or blanks
        for name, target, group in zip(names, targets or blanks, groups, strict=True):
            is_class = isinstance(target, int) and 0 <= target < len(classes)
            rows[name] = (split, classes[target] if is_class else target, group)
    return rows


def contents_of(table: "ImageTable") -> Contents:
    """Return the sizes of all files, and hashes of parts of NUM_HASHED files.

    The choice is the same for the same data set, and mostly the same for a subset of it. Files that
    cannot be read have no hash.
    """
    sizes = dict(zip(table.names, table.states[:, 0].tolist(), strict=True))
    sample_names = heapq.nsmallest(
        NUM_HASHED, sizes, key=lambda name: (zlib.crc32(os.fsencode(name)), name)
    )
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        hashes = pool.map(lambda name: _hash(f"{table.folder}/{name}", sizes[name]), sample_names)
        return sizes, {
            name: code for name, code in zip(sample_names, hashes, strict=True) if code is not None
        }


def _hash(path: str, size: int) -> str | None:
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        blocks = [
            os.pread(file.fileno(), PART, max(0, at)) for at in (0, (size - PART) // 2, size - PART)
        ]
        return hashlib.blake2b(b"".join(blocks), digest_size=8).hexdigest()
    return None


def _contents(record: Record) -> Contents:
    """Return the contents in a record.

    They are empty for images without files, and in records of earlier versions.
    """
    contents = record.get("contents", {"sizes": [], "hashes": {}})
    names = [name for split in SPLITS for name in record[split]["names"]]
    return dict(zip(names, contents["sizes"], strict=bool(contents["sizes"]))), contents["hashes"]


def _replaced_names(old_contents: Contents, new_contents: Contents) -> set[str]:
    """Return the names of files that are known to have other contents."""
    pairs = zip(old_contents, new_contents, strict=True)
    return {
        name for old, new in pairs for name in old.keys() & new.keys() if old[name] != new[name]
    }


def read(run: RunFolder) -> Record | None:
    """Read the record of a run, or return None without one.

    Raises ValueError if it is damaged.
    """
    try:
        if not run.images.exists():
            return None
        record = read_json(run.images)
        _named_rows(record)  # These calls fail for JSON of another structure.
        _replaced_names(_contents(record), ({}, {}))
        return record
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{display_path(run.images)} cannot be read ({error}): delete it, "
            "and add changed_data=accept"
        ) from error

"""A record of the images of a run, by name, target and split, compared when the run is used again."""

import gzip
import json
import sys
from collections.abc import Sequence
from typing import Any

from lockstep.config.errors import several
from lockstep.data.images.splits import Splits
from lockstep.runs.files import atomic_file, read_json
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import shown
from lockstep.system.wording import plural
from lockstep.training.session import Session
from lockstep.training.staging import together

Record = dict[str, Any]  # class_names, and of each split its names and targets


def keep(here: Session, images: Splits, run: RunFolder) -> None:
    """Write the record of a run. Every rank must call it."""
    together(lambda: _write(run, record_of(images)) if here.rank == 0 else None)


def compare(here: Session, images: Splits, run: RunFolder, *, is_new: bool = False) -> None:
    """Check that images are those of the run; with changed_data=accept, print the changes instead.

    A run that `is_new` may have no record. Every rank must call it. Raises ConfigError.
    """

    def work() -> None:
        if here.rank != 0:
            return
        before = _read(run)
        if before is None and is_new:
            return
        now = record_of(images)
        changes = ["its images were not recorded"] if before is None else differences(before, now)
        if not changes:
            return
        text = f"the data of {shown(run.path)} changed: {'; '.join(changes)}"
        if before is not None and len(before["class_names"]) != len(now["class_names"]):
            raise ValueError(
                f"{text}. Its network has a different number of outputs: restore the data, or train a new run"
            )
        if here.config.changed_data == "refuse":
            raise ValueError(f"{text}. Restore the data, or add changed_data=accept to use them as they are now")
        print(f"changed_data=accept: {text}", file=sys.stderr, flush=True)

    together(work)


def record_of(images: Splits) -> Record:
    parts = images.parts.items()
    return {
        "class_names": list(images.class_names),
        **{split: {"names": list(part.names), "targets": part.targets.tolist()} for split, part in parts},
    }


def trained_on(run: RunFolder, names: Sequence[str]) -> set[str] | None:
    """Return the names of the training images of a run; None if `names` are those of all its images, or not recorded.

    `compare` looks at these.
    """
    before = _read(run)
    if before is None or {*names} == _rows(before).keys():
        return None
    return set(before["train"]["names"])


def differences(before: Record, now: Record) -> list[str]:
    """Describe each kind of change from one record to another, with a count and an example; empty without changes."""
    if before == now:
        return []
    found: list[str] = []
    old_classes, classes = before["class_names"], now["class_names"]
    if old_classes != classes:
        pairs = [f"{old} is now {new}" for old, new in zip(old_classes, classes, strict=False) if old != new]
        counts = f"{plural(len(old_classes), 'class', 'classes')}, now {len(classes)}"
        found.append(f"classes in their order: {several(pairs) or counts}")
    old_rows, rows = _rows(before), _rows(now)
    both = [name for name in old_rows if name in rows]
    kinds = {
        "added": [name for name in rows if name not in old_rows],
        "removed": [name for name in old_rows if name not in rows],
        "moved to another split": [name for name in both if old_rows[name][0] != rows[name][0]],
        "with another target": [name for name in both if old_rows[name][1] != rows[name][1]],
    }
    found += [f"{plural(len(names), 'image')} {kind}, such as {names[0]}" for kind, names in kinds.items() if names]
    return found or ["the order of its images, or how often one is listed"]


def _rows(record: Record) -> dict[str, tuple[str, Any]]:
    """Return split and target, a class by its name, of each image."""
    classes: Any = list(record["class_names"])
    rows: dict[str, tuple[str, Any]] = {}
    for split in ("train", "val", "test"):
        names, targets = record[split]["names"], record[split]["targets"]
        for name, target in zip(names, targets or [None] * len(names), strict=True):  # a Dataset has no targets here
            is_class = isinstance(target, int) and 0 <= target < len(classes)
            rows[name] = (split, classes[target] if is_class else target)
    return rows


def _write(run: RunFolder, record: Record) -> None:
    with atomic_file(run.images) as file:
        file.write(gzip.compress(json.dumps(record).encode(), compresslevel=3, mtime=0))


def _read(run: RunFolder) -> Record | None:
    """Read the record of a run; None without one. Raises ValueError if it is damaged."""
    try:
        if not run.images.exists():
            return None
        record = read_json(run.images)
        _rows(record)  # JSON of another kind
        return record
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{shown(run.images)} cannot be read ({error}): delete it, and add changed_data=accept"
        ) from error

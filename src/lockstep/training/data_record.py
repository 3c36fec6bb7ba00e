"""The images of a run, kept in its folder by name, target and split, and compared when the run is used again."""

import gzip
import json
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lockstep.config.errors import several
from lockstep.data.images.splits import Splits
from lockstep.runs.files import atomic_file
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import shown
from lockstep.system.wording import plural
from lockstep.training.session import Session
from lockstep.training.staging import together

Record = dict[str, Any]  # class_names, and of each split its names and targets
Rows = dict[tuple[str, int], tuple[str, Any]]  # split and target by name, and how often the name has come before
SPLITS = ("train", "val", "test")


def keep(here: Session, images: Splits, run: RunFolder) -> None:
    """Record the images of a run. Every rank must call it."""
    together(lambda: _write(run, record_of(images)) if here.rank == 0 else None)


def compare(here: Session, images: Splits, run: RunFolder) -> None:
    """Refuse images that are not those of the run, or print what changed where changed_data=accept.

    Every rank must call it. Raises ConfigError.
    """

    def work() -> None:
        if here.rank != 0:
            return
        before, now = _read(run), record_of(images)
        changes = ["there is no record of its images"] if before is None else differences(before, now)
        if not changes:
            return
        text = f"the data of {shown(run.path)} changed: {'; '.join(changes)}"
        if before is not None and len(before["class_names"]) != len(now["class_names"]):
            raise ValueError(f"{text}. Its network has another number of outputs: restore the data, or train a new run")
        if here.config.changed_data == "refuse":
            raise ValueError(f"{text}. Restore the data, or add changed_data=accept to use them as they are now")
        print(f"changed_data=accept: {text}", file=sys.stderr, flush=True)

    together(work)


def record_of(images: Splits) -> Record:
    """What is kept of the images: plain values."""
    parts = images.parts.items()
    return {
        "class_names": list(images.class_names),
        **{split: {"names": list(part.names), "targets": part.targets.tolist()} for split, part in parts},
    }


def differences(before: Record, now: Record) -> list[str]:
    """What changed from one record to another, each kind with its number and an example; empty where nothing did."""
    if before == now:
        return []
    found = _renamed(before["class_names"], now["class_names"])
    old_rows, rows = _rows(before), _rows(now)
    both = [key for key in old_rows if key in rows]
    kinds = {
        "added": [key for key in rows if key not in old_rows],
        "removed": [key for key in old_rows if key not in rows],
        "moved to another split": [key for key in both if old_rows[key][0] != rows[key][0]],
        "with another target": [key for key in both if old_rows[key][1] != rows[key][1]],
    }
    for what, keys in kinds.items():
        if keys:
            found.append(f"{plural(len(keys), 'image')} {what}, such as {keys[0][0]}")
    return found or ["the order of its images"]


def _renamed(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """How the classes changed, which the outputs of a network go by in their order; empty where they did not."""
    if list(before) == list(now):
        return []
    pairs = [f"{old} is now {new}" for old, new in zip(before, now, strict=False) if old != new]
    counts = f"{plural(len(before), 'class', 'classes')}, now {len(now)}"
    return [f"classes in their order: {several(pairs) or counts}"]


def _rows(record: Record) -> Rows:
    classes: Sequence[str] = record["class_names"]
    rows: Rows = {}
    times: Counter[str] = Counter()
    for split in SPLITS:
        names, targets = record[split]["names"], record[split]["targets"]
        for position, name in enumerate(names):
            target = targets[position] if targets else None  # a Dataset has them in its samples
            if isinstance(target, int) and 0 <= target < len(classes):
                target = classes[target]
            rows[name, times[name]] = (split, target)
            times[name] += 1
    return rows


def _write(run: RunFolder, record: Record) -> None:
    with atomic_file(run.images) as file:
        file.write(gzip.compress(json.dumps(record).encode(), compresslevel=3, mtime=0))


def _read(run: RunFolder) -> Record | None:
    """The record of a run; None without one. Raises ValueError where it is damaged."""
    try:
        record = json.loads(gzip.decompress(run.images.read_bytes()))
        _rows(record)
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, zlib.error) as error:
        raise ValueError(
            f"{shown(run.images)} cannot be read ({error}): delete it, and add changed_data=accept"
        ) from error
    return record

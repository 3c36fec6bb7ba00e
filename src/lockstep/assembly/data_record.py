"""A record of the images of a run, by name, target, group, split and contents, for when the run is used again."""

import gzip
import json
import sys
from typing import Any

from lockstep.assembly.agreement import together
from lockstep.assembly.session import Session
from lockstep.data.splits import Kept, Splits
from lockstep.runs.files import atomic_file
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import display_path


def keep(here: Session, images: Splits, run: RunFolder) -> None:
    """Write the record of a run. Every rank must call it."""
    together(lambda: _write(run, record_of(images)) if here.rank == 0 else None)


def known_splits(run: RunFolder) -> Kept:
    """Return the split of each image that a run knows; None without a record. Raises ValueError."""
    if not run.images.exists():
        return None
    from lockstep.assembly import data_changes

    return data_changes.known_splits(run)


def compare(here: Session, images: Splits, run: RunFolder, *, is_new: bool = False) -> None:
    """Check that images are those of the run; with changed_data=accept, print the changes instead.

    A run that `is_new` may have no record. Every rank must call it. Raises ConfigError.
    """

    def work() -> None:
        if here.rank != 0:
            return
        if is_new and not run.images.exists():
            return
        from lockstep.assembly import data_changes

        before, now = data_changes.read(run), record_of(images)
        changes = ["its images were not recorded"] if before is None else data_changes.differences(before, now)
        if not changes:
            return
        text = f"the data of {display_path(run.path)} changed: {'; '.join(changes)}"
        if before is not None and len(before["class_names"]) != len(now["class_names"]):
            hint = "restore the data, or train a new run"
            raise ValueError(f"{text}. Its network has a different number of outputs: {hint}")
        if here.config.changed_data == "refuse":
            raise ValueError(f"{text}. Restore the data, or add changed_data=accept to use them as they are now")
        print(f"changed_data=accept: {text}", file=sys.stderr, flush=True)

    together(work)


def record_of(images: Splits) -> dict[str, Any]:
    """Return class names, names, targets and groups of each split, and the contents of files."""
    parts, record = images.parts, dict[str, Any](class_names=list(images.class_names))
    for split, part in parts.items():
        record[split] = {"names": list(part.names), "targets": part.targets.tolist()}
    if any(part.groups is not None for part in parts.values()):
        record["groups"] = {split: list(map(str, part.groups or ())) for split, part in parts.items()}
    if images.files is not None:
        from lockstep.assembly.data_changes import contents_of

        sizes, hashes = contents_of(images.files)
        names = [name for part in parts.values() for name in part.names]
        record["contents"] = {"sizes": [sizes[name] for name in names], "hashes": hashes}
    return record


def _write(run: RunFolder, record: dict[str, Any]) -> None:
    with atomic_file(run.images) as file:
        file.write(gzip.compress(json.dumps(record).encode(), compresslevel=3, mtime=0))

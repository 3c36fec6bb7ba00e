"""The predictions of all folds of a setting in one file: each image once, by the network that was not trained on it."""

import gzip
import json
from typing import Any

from lockstep.config import storage
from lockstep.runs.files import atomic_file
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import shown
from lockstep.sweeps.ledger import Ledger, Trial
from lockstep.sweeps.table import FOLD, Table


def join(ledger: Ledger, sweep_table: Table) -> list[str]:
    """Write a file for each setting whose folds are all tested, into the folder of the sweep. Returns what to print."""
    settings: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in ledger.trials if FOLD in sweep_table.keys else ():
        same = tuple(trial.settings.get(key) for key in sweep_table.keys if key != FOLD)
        settings.setdefault(same, []).append(trial)
    lines = []
    for trials in settings.values():
        trials.sort(key=lambda trial: int(trial.settings.get(FOLD, 0)))
        is_tested = all(trial.folder.fold_rows.exists() for trial in trials)
        if not is_tested or len(trials) != storage.load(trials[0].folder.config).data.folds:
            continue
        suffix = f"_{trials[0].number}" if len(settings) > 1 else ""
        path = ledger.path / f"out_of_fold{suffix}.csv"
        if len({tuple(sorted(_names(trial.folder))) for trial in trials}) > 1:
            lines.append(f"{path.name} is not written: the images changed between the folds. Use another sweep.name")
            continue
        parts = [trial.folder.fold_rows.read_bytes().partition(b"\n") for trial in trials]
        with atomic_file(path) as file:
            file.write(b"".join([*parts[0][:2], *(rows for *_, rows in parts)]))
        lines.append(f"Out-of-fold predictions: {shown(path)}")
    return lines


def _names(run: RunFolder) -> list[str]:
    record = json.loads(gzip.decompress(run.images.read_bytes()))
    return [name for split in ("train", "val", "test") for name in record[split]["names"]]

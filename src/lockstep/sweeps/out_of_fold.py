"""The predictions of all folds of a setting in one file: each image once, by the network that was not trained on it."""

from lockstep.config.saved import config_file
from lockstep.runs.files import LARGEST_UNPACKED, atomic_file, read_bytes, read_json
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import display_path
from lockstep.sweeps.ledger import Ledger
from lockstep.sweeps.table import FOLD, Table


def join(ledger: Ledger, sweep_table: Table) -> list[str]:
    """Write a file for each setting whose folds are all tested, into the folder of the sweep. Returns what to print."""
    lines, settings = [], sweep_table.group_rows(FOLD) if FOLD in sweep_table.keys else []
    for _, rows in settings:
        rows.sort(key=lambda row: int(row.settings.get(FOLD, 0)))
        folders = [row.trial.folder for row in rows if row.tests and row.trial.folder.fold_rows.exists()]
        if len(folders) < len(rows) or len(rows) != config_file.load(folders[0].config).data.folds:
            continue
        suffix = f"_{rows[0].trial.number}" if len(settings) > 1 else ""
        path = ledger.path / f"out_of_fold{suffix}.csv"
        if len({tuple(names(folder, "train", "val", "test")) for folder in folders}) > 1:
            lines.append(f"{path.name} is not written: the images changed between the folds. Use another sweep.name")
            continue
        parts = [read_bytes(folder.fold_rows, LARGEST_UNPACKED).partition(b"\n") for folder in folders]
        with atomic_file(path) as file:
            file.write(b"".join([*parts[0][:2], *(rest for *_, rest in parts)]))
        lines.append(f"Out-of-fold predictions: {display_path(path)}")
    return lines


def names(run: RunFolder, *splits: str) -> list[str]:
    """Return the sorted names of the images of a run. Raises ValueError without a record of them."""
    try:
        record = read_json(run.images)
        return sorted(name for split in splits for name in record[split]["names"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{display_path(run.images)} lacks the names of the images.") from error

"""The predictions of all folds of a setting in one file.

Each image occurs once, predicted by the network that was not trained on it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from lockstep.config.saved import config_file
from lockstep.runs.files import MAX_UNPACKED_BYTES, atomic_file, read_bytes, read_json
from lockstep.runs.folder import SWEEP, RunFolder
from lockstep.runs.naming import display_path
from lockstep.trials.ledger import Ledger
from lockstep.trials.results import Row
from lockstep.trials.table import FOLD, Table, present_table


def join(ledger: Ledger, sweep_table: Table) -> list[str]:
    """Write a file for each setting whose folds are all tested, into the folder of the sweep.

    Returns the lines to print.
    """
    lines = []
    for path, rows in _files(ledger, sweep_table):
        try:
            folders = _tested(rows)
        except ValueError as error:
            lines.append(f"{path.name} is not written: {error}")
            continue
        if folders:
            with atomic_file(path) as file:
                for position, folder in enumerate(folders):
                    content = read_bytes(folder.fold_rows, MAX_UNPACKED_BYTES)
                    # Only the first table keeps its head.
                    file.write(content.partition(b"\n")[2] if position else content)
            lines.append(f"Out-of-fold predictions: {display_path(path)}")
    return lines


def refresh(folder: RunFolder, *, is_silent: bool) -> None:
    """Write the files of a sweep again after a fold was resumed alone.

    A running sweep writes them at its end.
    """
    sweep = RunFolder(folder.path.parent)
    if not (sweep.path / SWEEP).is_file() or sweep.is_locked():
        return
    try:
        ledger = Ledger.open(sweep.path)
        lines = join(ledger, present_table(ledger))
    except (OSError, ValueError) as error:  # A finished run must not fail.
        lines = [
            f"{display_path(sweep.path)}: the out-of-fold predictions were not updated: {error}"
        ]
    if not is_silent:
        print(*lines, sep="\n", flush=True)


def folds_of_best_setting(sweep: Path) -> list[RunFolder]:
    """Return the folds of the best setting of a sweep.

    Raises ValueError if there is none, or one is not tested.
    """
    ledger = Ledger.open(sweep)
    _, rows = next(_files(ledger, present_table(ledger)), (None, []))
    folders = _tested(rows)
    if not folders:
        raise ValueError(
            f"{display_path(sweep)} has no predictions of all folds: finish a "
            "classification over data.folds=5 data.fold=0,1,2,3,4, "
            "or give a run."
        )
    return folders


def _tested(rows: Sequence[Row]) -> list[RunFolder]:
    """Return the folds of a setting, or none unless all are tested.

    Raises ValueError if their images are not the same.
    """
    folders = [row.trial.folder for row in rows]
    if not all(row.tests and row.trial.folder.fold_rows.exists() for row in rows):
        return []
    if not folders or len(folders) != config_file.load(folders[0].config).data.folds:
        return []
    if len({tuple(names(folder, "train", "val", "test")) for folder in folders}) > 1:
        raise ValueError("the images changed between the folds. Use another sweep.name")
    return folders


def _files(ledger: Ledger, sweep_table: Table) -> Iterator[tuple[Path, list[Row]]]:
    """Yield the file of each setting with its trials by fold, the best setting first."""
    settings = sweep_table.group_rows(FOLD) if FOLD in sweep_table.keys else []
    for _, rows in settings:
        rows.sort(key=lambda row: int(row.settings.get(FOLD, 0)))
        suffix = f"_{rows[0].trial.number}" if len(settings) > 1 else ""
        yield ledger.path / f"out_of_fold{suffix}.csv", rows


def names(run: RunFolder, *splits: str) -> list[str]:
    """Return the sorted names of the images of a run.

    Raises ValueError without a record of them.
    """
    try:
        record = read_json(run.images)
        return sorted(image_name for split in splits for image_name in record[split]["names"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{display_path(run.images)} lacks the names of the images.") from error

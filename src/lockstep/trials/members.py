"""The runs whose networks a command uses: a run, or those of the best setting of a sweep."""

from pathlib import Path

from lockstep.monitoring.comparison import differences
from lockstep.runs import naming
from lockstep.runs.folder import SWEEP, RunFolder
from lockstep.trials.ledger import Ledger
from lockstep.trials.table import FOLD, present_table, text


def members(name: str, *, is_flipped: bool) -> tuple[list[RunFolder], str]:
    """Return a run, or the finished trials of the best setting of a sweep, and what is averaged.

    The text is empty for a run, unless the predictions of mirror images are averaged, too. Raises
    FileNotFoundError if there is no such run or sweep. Raises ValueError for a sweep without a
    finished trial or without a best setting, and for trials whose data, network or task were
    changed during the sweep.
    """
    paths = (Path(name), Path("outputs", name))
    sweep = next((path.resolve() for path in paths if (path / SWEEP).is_file()), None)
    if sweep is None:
        average = "Average of each image and its mirror image" if is_flipped else ""
        return [naming.find(name)], average
    table = present_table(Ledger.open(sweep))
    settings, rows = table.rows_by_setting[0]
    if table.objective.is_last and len(table.rows_by_setting) > 1:
        raise ValueError(
            f"{name} has no best setting, because data.validate_on_test=true selects none: "
            f"give one of its trials, such as {name}/{rows[0].trial.number}."
        )
    folders = {row.trial.number: row.trial.folder for row in rows if row.state == "finished"}
    others = [f"trial {row.trial.number} ({row.state})" for row in rows if row.state != "finished"]
    if not folders:
        raise ValueError(
            f"{name} has no finished trial of its best setting, only {', '.join(others)}: "
            "start its command again, or give a run."
        )
    for key, _ in differences([*folders.values()]):
        if key != FOLD and key.startswith(("data.", "model.", "task.")):
            raise ValueError(
                f"{name} cannot be averaged, because {key} was changed between its trials: "
                "give one of its runs."
            )
    details = [
        f"trial{'s' if len(folders) > 1 else ''} {', '.join(map(str, folders))} "
        f"of {naming.display_path(sweep)}",
        *(f"{key}={text(value)}" for key, value in settings.items()),
        *(f"without {other}" for other in others),
    ]
    mirrored = ", and of each image's mirror image" if is_flipped else ""
    networks = f"Average of {len(folders)} networks" if len(folders) > 1 else "The best network"
    average = f"{networks}{mirrored}: {', '.join(details)}"
    return [*folders.values()], average

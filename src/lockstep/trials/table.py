"""The table of a sweep, in the terminal and as files.

It has the trials, the best first, with the settings in which they differ.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import Config
from lockstep.monitoring.formatting import NONE, epochs, text
from lockstep.runs.files import JsonObject, csv_text, to_json, write_atomically
from lockstep.runs.naming import display_path
from lockstep.runs.ranking import rank
from lockstep.system.text import plural
from lockstep.trials.ledger import Ledger, Trial
from lockstep.trials.results import Objective, Row, monitored_objective, row_of

STEM = "table"  # stem of table.csv and table.json in the folder of the sweep
FOLD = "data.fold"
REPEATS = {"seed": "seeds", FOLD: "folds"}  # A setting is averaged over the values of these keys.
INTERVAL = "95 % interval"
Setting = tuple[dict[str, str], list[Row]]  # the common settings of some trials, and the trials


class Group(NamedTuple):
    """A setting, with the spread of the objective over its trials.

    The trials differ only in seed and fold. `trials` are those of `num_trials` that are finished
    and have a value. Seeds of a fold are averaged, and count as one of `n`. A seed that was trained
    twice also counts as one. `tests` has the spread of the test results that all of `trials` have.
    """

    settings: dict[str, str]
    trials: tuple[int, ...]
    num_trials: int
    over: str  # seeds or folds
    n: int
    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    tests: dict[str, dict[str, float | None]]
    # number of groups of images over all folds, or 0 without groups and for seeds
    num_groups: int

    @property
    def is_complete(self) -> bool:
        return len(self.trials) == self.num_trials

    @property
    def repetitions(self) -> str:
        """`5 seeds`, `4 seeds, 1 missing`, `5 folds of 3 seeds`, or `5 folds, 120 groups`."""
        counts = plural(self.n, self.over.removesuffix("s"))
        if self.is_complete and self.over != "seeds" and self.n != self.num_trials:
            counts += f" of {self.num_trials / self.n:g} seeds"
        if self.num_groups:
            counts += f", {plural(self.num_groups, 'group')}"
        if not self.is_complete:
            counts += f", {self.num_trials - len(self.trials)} missing"
        return counts


@dataclass(frozen=True)
class Table:
    """All trials of a sweep, sorted by the objective. Trials of a setting are adjacent."""

    objective: Objective
    keys: tuple[str, ...]
    rows: tuple[Row, ...]
    is_search: bool

    @cached_property
    def tests(self) -> tuple[str, ...]:
        """The metrics of the test, with the loss last."""
        return tuple(dict.fromkeys(metric for row in self.rows for metric in row.tests))

    @property
    def lines(self) -> list[JsonObject]:
        """The lines of table.csv by column."""
        return [
            {
                "trial": row.trial.number,
                **{key: row.settings.get(key) for key in self.keys},
                "state": row.state,
                "device": row.trial.device,
                "epoch": epochs(row.facts),
                self.objective.name: row.value,
                **{metric: row.tests.get(metric) for metric in self.tests},
                "training_s": row.training_s,
                "folder": str(row.trial.folder.path),
                "reason": row.facts.get("reason", ""),
            }
            for row in self.rows
        ]

    @property
    def setting_texts(self) -> list[dict[str, str]]:
        """The lines of the settings by column, of which there are none if none is repeated."""
        groups = self.groups if self.is_repeated else []
        metrics = dict.fromkeys(metric for group in groups for metric in group.tests)
        return [
            {
                **{key: text(value) for key, value in group.settings.items()},
                "n": group.repetitions,
                self.objective.name: text(group.mean),
                INTERVAL: _interval(group.low, group.high),
                **{metric: _test_text(group.tests.get(metric)) for metric in metrics},
                # This column is last, because a narrow terminal shows the first columns.
                f"deviation of {self.objective.name}": text(group.deviation),
            }
            for group in groups
        ]

    @cached_property
    def is_repeated(self) -> bool:
        return len(self.group_rows(*REPEATS)) < len(self.rows)

    @property
    def over(self) -> str:
        """The key over which settings are averaged first."""
        return FOLD if FOLD in self.keys else "seed"

    @property
    def best(self) -> Group | None:
        """The complete setting with the best mean of the objective, or None.

        All trials of a complete setting are finished.
        """
        best_group = next(iter(self.groups), None)
        return best_group if best_group is not None and best_group.is_complete else None

    @cached_property
    def groups(self) -> list[Group]:
        """The settings that have a finished trial, in the order of `rows_by_setting`."""
        # This imports scipy.stats, which takes 0.4 s.
        from lockstep.trials.differences import bounded, spread

        groups, are_folds = [], self.over == FOLD
        for settings, all_rows in self.rows_by_setting:
            rows = [row for row in all_rows if row.result is not None]
            if not rows:
                continue
            spreads = {}
            for metric, column in self.measurements(rows).items():
                if None not in column:
                    values = [*self.repetitions(rows, column).values()]
                    spreads[metric] = bounded(spread(values, are_folds=are_folds), metric, values)
            groups.append(
                Group(
                    settings,
                    tuple(row.trial.number for row in rows),
                    max(len(all_rows), self._min_trials),
                    REPEATS[self.over],
                    *spreads.pop(self.objective.name),
                    tests={metric: test._asdict() for metric, test in spreads.items()},
                    num_groups=num_tested_groups(rows) if are_folds else 0,
                )
            )
        return groups

    @cached_property
    def rows_by_setting(self) -> list[Setting]:
        """The trials that differ only in seed and fold, by their other settings.

        Settings whose trials are all finished come first, then the one with the best mean. Of equal
        means, the lower mean of the validation loss comes first, then the first one in the command.
        """

        def order(item: Setting) -> tuple[Any, ...]:
            _, rows = item
            results = [row.result for row in rows]
            is_incomplete = None in results or len(results) < self._min_trials
            loss = self._mean(rows, [row.loss for row in rows])
            position = rank(self._mean(rows, results), loss, is_max=self.objective.is_max)
            return is_incomplete, position, min(row.trial.number for row in rows)

        return sorted(self.group_rows(*REPEATS), key=order)

    @cached_property
    def _min_trials(self) -> int:
        """The number of trials that a setting must have.

        If other settings are repeated, a single trial is not enough.
        """
        return 2 if self.is_repeated else 1

    def measurements(self, rows: Sequence[Row]) -> dict[str, list[float | None]]:
        """Return the objective and the metrics of the test, with a value for each row."""
        columns = {metric: [row.tests.get(metric) for row in rows] for metric in self.tests}
        return {self.objective.name: [row.value for row in rows], **columns}

    def repetitions(self, rows: Sequence[Row], values: Sequence[float | None]) -> dict[str, float]:
        """Return the known values by seed, or their means over the seeds by fold.

        A seed counts once.
        """
        repetitions = defaultdict[str, dict[str, float]](dict)
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                seed = row.settings.get("seed", "")
                repetitions[row.settings.get(self.over, "")][seed] = value
        return {key: statistics.fmean(means.values()) for key, means in repetitions.items()}

    def _mean(self, rows: Sequence[Row], values: Sequence[float | None]) -> float | None:
        repetition_values = [*self.repetitions(rows, values).values()]
        return statistics.fmean(repetition_values) if repetition_values else None

    def group_rows(self, *over: str) -> list[Setting]:
        """Group the trials that differ only in the keys `over`, by their other settings."""
        keys = [key for key in self.keys if key not in over]
        members: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in self.rows:
            members[tuple(row.trial.typed.get(key, "") for key in keys)].append(row)
        return [
            ({key: rows[0].settings.get(key, "") for key in keys}, rows)
            for rows in members.values()
        ]

    @property
    def notes(self) -> list[str]:
        """The lines below the table: a warning about single trials, and failed trials."""
        notes = list[str]()
        if len(self.groups) > 1 and not self.is_repeated and not self.is_search:
            notes.append(
                "Each setting ran once: a difference may be chance. seed=0,1,2 repeats each."
            )
        for row in self.rows:
            if row.state == "failed":
                notes.append(f"Trial {row.trial.number} failed: {row.facts.get('reason', '')}")
        return notes


def num_tested_groups(rows: Sequence[Row]) -> int:
    """Count the groups of the images of all folds, each fold once."""
    return sum({row.settings.get(FOLD): row.num_groups for row in rows}.values())


def table(
    ledger: Ledger,
    objective: Objective,
    live_states: dict[int, str],
    *,
    cache: dict[int, Row] | None = None,
    is_search: bool = False,
) -> Table:
    """Return the table of a ledger.

    `live_states` has states by number. `cache` has the rows of trials that have not changed.
    """
    rows_by_number = {} if cache is None else cache
    keys, rows = differing_keys(ledger.trials), []
    repeats = [key for key in REPEATS if key in keys]
    for trial in ledger.trials:
        row = rows_by_number.get(trial.number)
        if row is None or not row.settings.keys() >= {*repeats}:
            row = row_of(trial, objective, live_states.get(trial.number), repeats)
            rows_by_number[trial.number] = row
        rows.append(row)

    def order(row: Row) -> tuple[Any, ...]:
        return (
            row.state != "finished",
            rank(row.value, row.loss, is_max=objective.is_max),
            row.trial.number,
        )

    sweep_table = Table(objective, keys, tuple(sorted(rows, key=order)), is_search)
    if not sweep_table.is_repeated:
        return sweep_table
    rows = []
    for _, members in sweep_table.rows_by_setting:
        rows += sorted(members, key=lambda row: row.trial.number)
    return replace(sweep_table, rows=tuple(rows))


def present_table(ledger: Ledger) -> Table:
    """Return the table of a sweep that another process may run.

    Raises ValueError before its first trial.
    """
    config = config_of(ledger)
    return table(ledger, monitored_objective(config), {}, is_search=config.search is not None)


def config_of(ledger: Ledger) -> Config:
    """Return the configuration of the first trial of a sweep.

    Raises ValueError if there is none yet.
    """
    for trial in ledger.trials:
        if trial.folder.config.exists():
            return config_file.load(trial.folder.config)
    raise ValueError(
        f"{display_path(ledger.path)} is a sweep without a trial yet: lockstep jobs "
        "show shows its job."
    )


def differing_keys(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Return the keys whose values differ between the trials, in the order of the command."""
    keys = dict.fromkeys(key for trial in trials for key in trial.typed)
    return tuple(key for key in keys if len({trial.typed.get(key) for trial in trials}) > 1)


def description(trial: Trial, trials: Sequence[Trial]) -> str:
    """Return the settings in which a trial differs from others.

    For a single trial these are all settings.
    """
    keys = differing_keys(trials) or trial.settings
    settings = [f"{key}={text(trial.settings[key])}" for key in keys if key in trial.settings]
    return " ".join(settings) or "the defaults"


def write(ledger: Ledger, sweep_table: Table) -> None:
    """Write table.csv and table.json into the folder of the sweep."""
    lines = sweep_table.lines
    rows = [list(lines[0]), *(list(line.values()) for line in lines)] if lines else []
    write_atomically(ledger.path / f"{STEM}.csv", csv_text(rows))
    write_atomically(ledger.path / f"{STEM}.json", to_json(table_facts(ledger, sweep_table)) + "\n")


def table_facts(ledger: Ledger, sweep_table: Table) -> JsonObject:
    """Return the content of table.json."""
    best, objective = sweep_table.best, sweep_table.objective
    return {
        "name": ledger.name,
        "command": list(ledger.command),
        "best_trials": best.trials if best is not None else (),
        "objectives": {objective.name: "max" if objective.is_max else "min"},
        "trials": sweep_table.lines,
        "groups": [group._asdict() for group in sweep_table.groups],
    }


def _interval(low: float | None, high: float | None) -> str:
    return NONE if low is None else f"{text(low)} to {text(high)}"


def _test_text(spread: dict[str, float | None] | None) -> str:
    """Return the mean of a test result with its interval, if it has one."""
    if spread is None:
        return NONE
    mean = text(spread["mean"])
    if spread["low"] is None:
        return mean
    return f"{mean} ({_interval(spread['low'], spread['high'])})"

"""The table of a sweep: its trials, the best first, with the settings in which they differ; also as files."""

import itertools
import math
import operator
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lockstep.config import build, storage
from lockstep.config.schema import Config
from lockstep.monitoring.cells import epochs
from lockstep.runs.discovery import look_at, read_rows, read_tests
from lockstep.runs.files import csv_text, to_json, write_atomically
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import shown
from lockstep.sweeps.ledger import Ledger, Trial, state_of
from lockstep.system.terminal import duration, measure, printable

STEM = "table"  # table.csv, table.json and table.md in the folder of the sweep
FOLD = "data.fold"
REPEATS = {"seed": "seeds", FOLD: "folds"}  # keys over whose values a setting is averaged
DECIMAL = re.compile(r"-?\d+\.\d+(e-?\d+)?")


@dataclass(frozen=True)
class Row:
    """One trial. `values` are those of the objectives, for a live trial the best so far; `facts` is its status."""

    trial: Trial
    settings: dict[str, str]
    state: str
    values: tuple[float | None, ...]
    tests: dict[str, float]
    training_s: float | None
    facts: dict[str, Any]

    @property
    def result(self) -> float | None:
        """The first objective of a finished trial; the value of another one is no result."""
        return self.values[0] if self.state == "finished" else None


@dataclass(frozen=True)
class Objective:
    """An optimized number. `name` is a metric of the best epoch, or a number of summary.json."""

    name: str
    is_max: bool

    def of(self, folder: RunFolder, monitored: "Objective") -> float | None:
        """Return the value of a run. The best epoch is that of best.ckpt, which is chosen by `monitored`."""
        summary = _summary(folder)
        value = summary.get("best") if self.name == monitored.name else summary.get(self.name)
        rows = [row for row in read_rows(folder) if monitored.name in row]
        if value is not None or not rows:
            return value
        best = (max if monitored.is_max else min)(rows, key=lambda row: row[monitored.name])
        return best.get(self.name)


def monitored(config: Config) -> Objective:
    """Return the objective by which best.ckpt is chosen."""
    monitor, mode = build.monitored(config)
    return Objective(monitor, mode == "max")


def objectives_of(config: Config) -> list[Objective]:
    """Return what a search optimizes, of other sweeps what is monitored."""
    chosen = (config.search.objectives or {}) if config.search is not None else {}
    return [Objective(name, kind == "max") for name, kind in chosen.items()] or [monitored(config)]


class Group(NamedTuple):
    """Trials that differ only in seed and fold, with mean and deviation (of n - 1) of the first objective.

    `n` of the trials are finished and have a value. `tests` has the test results that all of these have.
    """

    settings: dict[str, str]
    num_trials: int
    n: int
    mean: float
    deviation: float
    tests: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Table:
    """All trials of a sweep, sorted by the first objective."""

    objectives: tuple[Objective, ...]
    keys: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def tests(self) -> tuple[str, ...]:
        """The names of the test results in summary.json; the loss is last."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.tests))

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The columns of table.csv by their heads."""
        rows = self.rows
        return {
            "trial": [row.trial.number for row in rows],
            **{key: [row.settings.get(key) for row in rows] for key in self.keys},
            "state": [row.state for row in rows],
            "device": [row.trial.device for row in rows],
            "epoch": [epochs(row.facts) for row in rows],
            **{objective.name: [row.values[i] for row in rows] for i, objective in enumerate(self.objectives)},
            **{name: [row.tests.get(name) for row in rows] for name in self.tests},
            "training_s": [row.training_s for row in rows],
            "folder": [str(row.trial.folder.path) for row in rows],
            "reason": [row.facts.get("reason", "") for row in rows],
        }

    @property
    def texts(self) -> dict[str, list[str]]:
        """The columns as text."""
        columns = {name: values for name, values in self.columns.items() if name not in ("folder", "reason")}
        times = [time_of(seconds) for seconds in columns.pop("training_s")]
        return {name: list(map(text, values)) for name, values in columns.items()} | {"time": times}

    @property
    def finished(self) -> list[Row]:
        """The finished trials that have a value of the first objective, the best first."""
        return [row for row in self.rows if row.result is not None]

    @property
    def best(self) -> Row | None:
        """The finished trial with the best value of the only objective; no fold is better than the others."""
        return self.finished[0] if self.finished and len(self.objectives) == 1 and FOLD not in self.keys else None

    @property
    def best_rows(self) -> list[Row]:
        """The best trial, or of folds those of the setting with the best mean that has all of them."""
        if FOLD not in self.keys:
            return [self.best] if self.best else []
        return next((rows for _, rows in self.repeated if None not in [row.result for row in rows]), [])

    @property
    def repeated(self) -> list[tuple[dict[str, str], list[Row]]]:
        """The trials that differ only in seed and fold, by their other settings; the best mean first."""

        def rank(item: tuple[Any, list[Row]]) -> float:
            values = _results(item[1])
            return (-1 if self.objectives[0].is_max else 1) * statistics.fmean(values) if values else math.inf

        return sorted(self.grouped(*REPEATS), key=rank)

    def grouped(self, *over: str) -> list[tuple[dict[str, str], list[Row]]]:
        """Group the trials that differ only in the keys `over`, by their other settings."""
        keys = [key for key in self.keys if key not in over]
        members: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in self.rows:
            members[tuple(row.settings.get(key, "") for key in keys)].append(row)
        return [(dict(zip(keys, same, strict=True)), rows) for same, rows in members.items()]

    @property
    def front(self) -> list[int]:
        """The finished trials that no other one beats or equals in every objective: the Pareto front."""
        signs = [1 if objective.is_max else -1 for objective in self.objectives]
        rows = [row for row in self.finished if None not in row.values]
        gains = [[sign * (value or 0.0) for sign, value in zip(signs, row.values, strict=True)] for row in rows]

        def is_beaten(mine: list[float]) -> bool:
            return any(other != mine and all(map(operator.ge, other, mine)) for other in gains)

        return [row.trial.number for row, mine in zip(rows, gains, strict=True) if not is_beaten(mine)]

    @property
    def groups(self) -> list[Group]:
        """Groups of at least two finished trials, the best first."""
        if REPEATS.keys().isdisjoint(self.keys):
            return []
        groups = []
        for settings, rows in self.repeated:
            done = [row for row in rows if row.result is not None]
            if len(done) > 1:
                columns = {name: [row.tests[name] for row in done if name in row.tests] for name in self.tests}
                tests = {name: _spread(column) for name, column in columns.items() if len(column) == len(done)}
                groups.append(Group(settings, len(rows), len(done), **_spread(_results(done)), tests=tests))
        return groups

    @property
    def notes(self) -> list[str]:
        """Lines below the table: the Pareto front, mean and standard deviation over seeds and folds, failed trials."""
        notes = []
        if len(self.objectives) > 1:
            notes.append(f"Pareto front: trials {', '.join(map(str, self.front)) or 'none'}")
        for group in self.groups:
            settings = " ".join(f"{key}={text(value)}" for key, value in group.settings.items()) or "all"
            over = " and ".join(word for key, word in REPEATS.items() if key in self.keys)
            tests = [f", {name} {_text(**spread)}" for name, spread in group.tests.items()][:1]
            of = "" if group.n == group.num_trials else f" of {group.num_trials}"
            notes.append(f"{settings}: {_text(group.mean, group.deviation)} over {group.n}{of} {over}{''.join(tests)}")
        failed = [row for row in self.rows if row.state == "failed"]
        return notes + [f"Trial {row.trial.number} failed: {row.facts.get('reason', '')}" for row in failed]


def table(
    ledger: Ledger,
    objectives: Sequence[Objective],
    running: dict[int, str],
    *,
    monitored: Objective,
    known: dict[int, Row] | None = None,
) -> Table:
    """Return the table of a ledger. `running` has the states of running trials by number.

    `known` caches the rows of the others between calls, so that their folders are read once.
    """
    kept = {} if known is None else known
    for trial in ledger.trials:
        if trial.number in running or trial.number not in kept:
            kept[trial.number] = _row(trial, objectives, monitored, running.get(trial.number))
    rows = [kept[trial.number] for trial in ledger.trials]
    first = objectives[0]

    def rank(row: Row) -> tuple[bool, bool, float, int]:
        value = row.values[0]
        known = 0.0 if value is None else -value if first.is_max else value
        return (row.state != "finished", value is None, known, row.trial.number)

    made = Table(tuple(objectives), differing(ledger.trials), tuple(sorted(rows, key=rank)))
    if FOLD not in made.keys:
        return made
    grouped = (sorted(same, key=lambda row: row.trial.number) for _, same in made.repeated)
    return replace(made, rows=tuple(itertools.chain(*grouped)))


def present(ledger: Ledger) -> Table:
    """Return the table of a sweep that another process may run. Raises ValueError before its first trial."""
    file = next((trial.folder.config for trial in ledger.trials if trial.folder.config.exists()), None)
    if file is None:
        raise ValueError(f"{shown(ledger.path)} is a sweep without a trial yet: lockstep jobs show shows its job.")
    config = storage.load(file)
    return table(ledger, objectives_of(config), {}, monitored=monitored(config))


def differing(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Return the keys whose values differ between the trials, in the order of the command."""
    settings = [trial.settings for trial in trials]
    keys = dict.fromkeys(key for run_settings in settings for key in run_settings)
    return tuple(key for key in keys if len({run_settings.get(key) for run_settings in settings}) > 1)


def description(trial: Trial, trials: Sequence[Trial]) -> str:
    """Return the settings in which a trial differs from others; all settings of a single trial."""
    keys = differing(trials) or trial.settings
    return " ".join(f"{key}={text(trial.settings[key])}" for key in keys if key in trial.settings) or "the defaults"


def _row(trial: Trial, objectives: Sequence[Objective], monitored: Objective, live: str | None) -> Row:
    facts = look_at(trial.folder)
    values = tuple(objective.of(trial.folder, monitored) for objective in objectives)
    training_s = _summary(trial.folder).get("training_s", facts.get("elapsed_s"))
    return Row(trial, trial.settings, live or state_of(facts), values, read_tests(trial.folder), training_s, facts)


def write(ledger: Ledger, sweep_table: Table) -> None:
    """Write table.csv, table.json and table.md into the folder of the sweep."""
    columns = sweep_table.columns
    lines = list(zip(*columns.values(), strict=True))
    write_atomically(ledger.path / f"{STEM}.csv", csv_text([list(columns), *lines]))
    write_atomically(ledger.path / f"{STEM}.json", to_json(as_json(ledger, sweep_table)) + "\n")
    write_atomically(ledger.path / f"{STEM}.md", _markdown(sweep_table))


def as_json(ledger: Ledger, sweep_table: Table) -> dict[str, Any]:
    """Return the content of table.json."""
    columns, best = sweep_table.columns, sweep_table.best
    return {
        "name": ledger.name,
        "command": list(ledger.command),
        "best": best.trial.number if best is not None else None,
        "front": sweep_table.front,
        "objectives": {objective.name: "max" if objective.is_max else "min" for objective in sweep_table.objectives},
        "trials": [dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)],
        "groups": [group._asdict() for group in sweep_table.groups],
    }


def _markdown(sweep_table: Table) -> str:
    columns = sweep_table.texts
    cells = [list(columns), ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in cells]
    return "\n".join([*lines, "", *(f"- {note}" for note in sweep_table.notes)]).rstrip() + "\n"


def _results(rows: Iterable[Row]) -> list[float]:
    return [row.result for row in rows if row.result is not None]


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": statistics.fmean(values), "deviation": statistics.stdev(values)}


def _text(mean: float, deviation: float) -> str:
    return f"{text(mean)} ± {text(deviation)}"


def text(value: Any) -> str:
    """Format a setting or a measured value, a long number with four digits."""
    if isinstance(value, float):
        return measure(value)
    if isinstance(value, str) and len(value) > 8 and DECIMAL.fullmatch(value):
        return f"{float(value):.4g}"
    return "-" if value is None else printable(str(value))


def time_of(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _summary(folder: RunFolder) -> dict[str, Any]:
    try:
        return folder.read_summary()
    except (OSError, ValueError):
        return {}

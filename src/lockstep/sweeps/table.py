"""The table of a sweep: its trials, the best first, with the settings in which they differ; also as files.

views.py shows it.
"""

import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lockstep.runs.discovery import is_test, look_at
from lockstep.runs.files import csv_text, to_json, write_atomically
from lockstep.runs.folder import RunFolder
from lockstep.sweeps.ledger import Ledger, Trial
from lockstep.system.terminal import measure

STEM = "table"  # table.csv, table.json and table.md in the folder of the sweep
SEED = "seed"


@dataclass(frozen=True)
class Row:
    """What is told of one trial; `values` are those that are optimized, the best known ones of a live trial."""

    trial: Trial
    settings: dict[str, str]
    state: str
    reason: str
    epoch: str
    values: tuple[float | None, ...]
    tests: dict[str, float | None]
    training_s: float | None
    left_s: float | None


@dataclass(frozen=True)
class Objective:
    """A number that is optimized. `name` is a metric of the best epoch, or a number of summary.json."""

    name: str
    is_max: bool

    def of(self, folder: RunFolder, monitored: "Objective") -> float | None:
        """The value of the objective in a run. The best epoch is that of best.ckpt, which is chosen by `monitored`."""
        summary = _or_empty(folder.read_summary)
        if self.name == monitored.name and _is_number(summary.get("best")):
            return summary["best"]
        if _is_number(summary.get(self.name)):
            return summary[self.name]
        rows = [row for row in _or_empty(folder.read_metrics) if number(row.get(monitored.name)) is not None]
        if not rows:
            return None
        best = (max if monitored.is_max else min)(rows, key=lambda row: number(row[monitored.name]) or 0.0)
        return number(best.get(self.name))


class Group(NamedTuple):
    """Trials that differ in the seed alone, and the mean and standard deviation of what is optimized first."""

    settings: dict[str, str]
    n: int
    mean: float
    deviation: float


@dataclass(frozen=True)
class Table:
    """All trials of a sweep, by the first objective."""

    objectives: tuple[Objective, ...]
    keys: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def tests(self) -> tuple[str, ...]:
        """What the test measures, by its names in summary.json: first what decides between trials, last the loss."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.tests))

    @property
    def best(self) -> Row | None:
        """The finished trial with the best value of the only objective."""
        finished = [row for row in self.rows if row.state == "finished" and row.values[0] is not None]
        return finished[0] if finished and len(self.objectives) == 1 else None

    @property
    def front(self) -> list[int]:
        """The finished trials that no other one beats or equals in every objective: the Pareto front."""

        def gains(row: Row) -> list[float]:
            pairs = zip(self.objectives, row.values, strict=True)
            return [(value or 0.0) * (1 if objective.is_max else -1) for objective, value in pairs]

        rows = [row for row in self.rows if row.state == "finished" and None not in row.values]
        known = [(row.trial.number, gains(row)) for row in rows]
        return [
            number
            for number, mine in known
            if not any(other != mine and all(a >= b for a, b in zip(other, mine, strict=True)) for _, other in known)
        ]

    @property
    def failures(self) -> list[str]:
        """Which trials failed, and why."""
        return [f"Trial {row.trial.number} failed: {row.reason}" for row in self.rows if row.state == "failed"]

    @property
    def groups(self) -> list[Group]:
        """Groups of at least two finished trials, the best first."""
        if SEED not in self.keys:
            return []
        members: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            if row.state == "finished" and row.values[0] is not None:
                same = tuple(row.settings.get(key, "") for key in self.keys if key != SEED)
                members.setdefault(same, []).append(row)
        keys = [key for key in self.keys if key != SEED]
        groups: list[Group] = []
        for same, rows in members.items():
            if len(rows) > 1:
                values = [row.values[0] or 0.0 for row in rows]
                mean, deviation = statistics.fmean(values), statistics.stdev(values)
                settings = dict(zip(keys, same, strict=True))
                groups.append(Group(settings, len(rows), mean, deviation))
        return sorted(groups, key=lambda group: group.mean, reverse=self.objectives[0].is_max)


def table(ledger: Ledger, objectives: Sequence[Objective], running: dict[int, str], *, monitored: Objective) -> Table:
    """The table of a ledger. `running` has the state of the trials that run now, by number."""
    rows = [_row(trial, objectives, monitored, running.get(trial.number)) for trial in ledger.trials]
    first = objectives[0]

    def rank(row: Row) -> tuple[bool, bool, float, int]:
        value = row.values[0]
        known = 0.0 if value is None else -value if first.is_max else value
        # what a trial had when it was cut off is no result
        return (row.state != "finished", value is None, known, row.trial.number)

    return Table(tuple(objectives), differing(ledger.trials), tuple(sorted(rows, key=rank)))


def differing(trials: Sequence[Trial]) -> tuple[str, ...]:
    """The keys whose values differ between the trials, in the order in which they were typed."""
    settings = [trial.settings for trial in trials]
    keys = dict.fromkeys(key for run_settings in settings for key in run_settings)
    return tuple(key for key in keys if len({run_settings.get(key) for run_settings in settings}) > 1)


def told(trial: Trial, trials: Sequence[Trial]) -> str:
    """The settings of a trial in which it differs from others; of a single one, all."""
    keys = differing(trials) or trial.settings
    return " ".join(f"{key}={setting(trial.settings[key])}" for key in keys if key in trial.settings) or "the defaults"


def _row(trial: Trial, objectives: Sequence[Objective], monitored: Objective, live: str | None) -> Row:
    facts = look_at(trial.folder)
    summary = _or_empty(trial.folder.read_summary)
    epoch, last = facts.get("epoch"), facts.get("max_epochs")
    return Row(
        trial=trial,
        settings=trial.settings,
        state=live or trial.state,
        reason=facts.get("reason", ""),
        epoch=f"{epoch}/{last}" if epoch is not None and last is not None else "",
        values=tuple(objective.of(trial.folder, monitored) for objective in objectives),
        tests={name: number(value) for name, value in summary.items() if is_test(name)},
        training_s=number(summary.get("training_s", facts.get("elapsed_s"))),
        left_s=number(facts.get("remaining_s")) if live else None,
    )


def write(ledger: Ledger, sweep_table: Table) -> None:
    """Write table.csv, table.json and table.md into the folder of the sweep."""
    heads = [
        "trial",
        *sweep_table.keys,
        "state",
        "epoch",
        *(objective.name for objective in sweep_table.objectives),
        *sweep_table.tests,
    ]
    heads += ["training_s", "device", "folder", "reason"]
    lines = [_plain(row, sweep_table) for row in sweep_table.rows]
    write_atomically(ledger.path / f"{STEM}.csv", csv_text([heads, *lines]))
    best = sweep_table.best
    kept = {
        "name": ledger.name,
        "command": list(ledger.command),
        "best": best.trial.number if best is not None else None,
        "front": sweep_table.front,
        "objectives": {objective.name: "max" if objective.is_max else "min" for objective in sweep_table.objectives},
        "trials": [dict(zip(heads, line, strict=True)) for line in lines],
        "groups": [group._asdict() for group in sweep_table.groups],
    }
    write_atomically(ledger.path / f"{STEM}.json", to_json(kept) + "\n")
    write_atomically(ledger.path / f"{STEM}.md", _markdown(sweep_table))


def _plain(row: Row, sweep_table: Table) -> list[Any]:
    known = [row.trial.number, *(row.settings.get(key) for key in sweep_table.keys), row.state, row.epoch, *row.values]
    return [
        *known,
        *map(row.tests.get, sweep_table.tests),
        row.training_s,
        row.trial.device,
        str(row.trial.folder.path),
        row.reason,
    ]


def _markdown(sweep_table: Table) -> str:
    first = sweep_table.objectives[0]
    heads = [
        "trial",
        *sweep_table.keys,
        "state",
        *(objective.name for objective in sweep_table.objectives),
        *(name.replace("_", " ") for name in sweep_table.tests),
        "seconds",
    ]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for row in sweep_table.rows:
        values = [shown(value) for value in (*row.values, *map(row.tests.get, sweep_table.tests))]
        seconds = f"{row.training_s:.1f}" if row.training_s is not None else "-"
        settings = [setting(row.settings.get(key, "-")) for key in sweep_table.keys]
        lines.append(_line([str(row.trial.number), *settings, row.state, *values, seconds]))
    if len(sweep_table.objectives) > 1:
        lines += ["", front_told(sweep_table)]
    if sweep_table.groups:
        keys = list(sweep_table.groups[0].settings)
        lines += ["", _line([*keys, f"{first.name}, mean ± deviation", "n"])]
        lines.append(_line(["---"] * (len(keys) + 2)))
        lines += [_line([*group.settings.values(), deviating(group), str(group.n)]) for group in sweep_table.groups]
    if sweep_table.failures:
        lines += ["", *(f"- {text}" for text in sweep_table.failures)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def front_told(sweep_table: Table) -> str:
    """Which trials no other one beats."""
    return f"Pareto front: trials {', '.join(map(str, sweep_table.front)) or 'none'}"


def setting(text: str) -> str:
    """A value that was typed or drawn; of a number with many digits the first four."""
    known = number(text)
    return f"{known:.4g}" if known is not None and len(text) > 8 and "." in text else text


def shown(value: float | None) -> str:
    """A value with four digits behind the point, or as many as a small or large one needs."""
    if value is None:
        return "-"
    return measure(value)


def deviating(group: Group) -> str:
    """Mean ± standard deviation of a group."""
    return f"{shown(group.mean)} ± {shown(group.deviation)}"


def _or_empty(read: Any) -> Any:
    try:
        return read()
    except (OSError, ValueError, csv.Error, RecursionError):  # whatever stands there
        return {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: Any) -> float | None:
    """A finite number, also one in a text; None for all else."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return value if _is_number(value) else None

"""The results of the trials of a sweep, and the numbers by which they are compared."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.config import build, storage
from lockstep.config.schema import Config
from lockstep.runs.discovery import look_at, read_rows, read_tests
from lockstep.runs.folder import RunFolder
from lockstep.runs.ranking import LOSS, rank
from lockstep.sweeps.ledger import Trial, state_of
from lockstep.system.trees import at


@dataclass(frozen=True)
class Row:
    """One trial. `values` are those of the objectives, for a live trial the best so far; `facts` is its status.

    `loss` is the validation loss of the best epoch, which orders trials with equal values.
    """

    trial: Trial
    settings: dict[str, str]
    state: str
    values: tuple[float | None, ...]
    loss: float | None
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
        return best_epoch(folder, monitored).get(self.name) if value is None else value


def best_epoch(folder: RunFolder, monitored: Objective) -> dict[str, float]:
    """Return the row of metrics.csv of the epoch of best.ckpt, of equal ones the last; empty without one."""
    rows = [row for row in reversed(read_rows(folder)) if monitored.name in row]
    return min(rows, key=lambda row: rank(row[monitored.name], row.get(LOSS), is_max=monitored.is_max), default={})


def monitored(config: Config) -> Objective:
    """Return the objective by which best.ckpt is chosen."""
    monitor, mode = build.monitored(config)
    return Objective(monitor, mode == "max")


def objectives_of(config: Config) -> list[Objective]:
    """Return what a search optimizes, of other sweeps what is monitored."""
    chosen = (config.search.objectives or {}) if config.search is not None else {}
    return [Objective(name, kind == "max") for name, kind in chosen.items()] or [monitored(config)]


def row_of(
    trial: Trial, objectives: Sequence[Objective], monitored: Objective, live: str | None, needed: Collection[str]
) -> Row:
    """Read the row of a trial from its folder; `live` is the state of a running one.

    Settings that are `needed`, but not among the overrides, are those of its configuration.
    """
    facts, settings = look_at(trial.folder), trial.settings
    if not settings.keys() >= {*needed} and trial.folder.config.exists():
        tree = storage.load_tree(trial.folder.config)
        settings = {key: str(at(tree, key.split("."))) for key in needed} | settings
    values = tuple(objective.of(trial.folder, monitored) for objective in objectives)
    training_s = _summary(trial.folder).get("training_s", facts.get("elapsed_s"))
    loss, tests = best_epoch(trial.folder, monitored).get(LOSS), read_tests(trial.folder)
    return Row(trial, settings, live or state_of(facts), values, loss, tests, training_s, facts)


def _summary(folder: RunFolder) -> dict[str, Any]:
    try:
        return folder.read_summary()
    except (OSError, ValueError):
        return {}

"""The sweeps of the tab Training, which shows all trials with their settings and metrics.

Unchanged trials are not read again.
"""

import statistics
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from lockstep.runs.discovery import RunWatcher, is_number, modified_ns
from lockstep.runs.files import JsonObject
from lockstep.runs.folder import SWEEP, RunFolder

# The same command skips trials in these states.
DONE = ("finished", "pruned")
# The state of a sweep is the first of these that a trial has. Live states come first, then the
# worst ends.
STATES = (
    "training",
    "validating",
    "testing",
    "starting",
    "stopping",
    "failed",
    "no signal",
    "broken",
    "stopped",
    "not started",
    *DONE,
)


def test_result(metrics: Mapping[str, float]) -> JsonObject:
    """Return the name and the value of the first test metric.

    The loss is returned only if there is no other metric.
    """
    test_names = sorted(
        (metric for metric in metrics if metric.startswith("test/")),
        key=lambda metric: metric == "test/loss",
    )
    return {"tested": test_names[0], "test": metrics[test_names[0]]} if test_names else {}


class Sweeps:
    """The sweeps below the folder of `watcher`."""

    def __init__(self, watcher: RunWatcher) -> None:
        self._watcher = watcher
        self._sweeps: dict[str, _Sweep] = {}
        # TensorBoard answers each request in a thread.
        self._lock = threading.Lock()

    def rows(self) -> list[JsonObject]:
        """Return a row of the list of runs for each sweep.

        The row has the state, the progress, and the results of the best setting.
        """
        trials: dict[str, dict[RunFolder, JsonObject]] = defaultdict(dict)
        for run in self._watcher.runs().values():
            if run.sweep is not None:
                trials[run.sweep][run.folder] = self._watcher.facts(run)
        return [
            _row(sweep_name, [*facts.values()]) | self._results(sweep_name, facts)
            for sweep_name, facts in trials.items()
        ]

    def _results(self, name: str, facts: dict[RunFolder, JsonObject]) -> JsonObject:
        """Return the command of a sweep, and the means of its best setting if it has one."""
        try:
            with self._lock:
                command, table = self._sweep(name).read(facts)
        except (OSError, ValueError):
            # The page of the sweep shows the reason.
            return {"overrides": []}
        if table.best is None:
            return {"overrides": command}
        means = {test: spread["mean"] for test, spread in table.best.tests.items()}
        setting = " ".join(f"{key}={value}" for key, value in table.best.settings.items())
        best = {"monitor": table.objective.name, "best": table.best.mean, "setting": setting}
        return {"overrides": command, **best, **test_result(means)}

    def _sweep(self, name: str) -> "_Sweep":
        return self._sweeps.setdefault(name, _Sweep(RunFolder(self._watcher.root / name)))

    def describe(self, name: str) -> JsonObject:
        """Return a sweep by its name.

        Raises KeyError for an unknown sweep, and ValueError for one that cannot be read.
        """
        facts = {
            run.folder: self._watcher.facts(run)
            for run in self._watcher.runs().values()
            if run.sweep == name
        }
        if not facts:
            raise KeyError(name)
        with self._lock:
            return self._sweep(name).describe(facts)


class _Sweep:
    """One sweep.

    A row and its metrics are kept until the trial, the facts of its run or its summary change.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._changed = 0
        self._table: Any = None
        self._seen: dict[int, Any] = {}
        self._rows: dict[int, Any] = {}
        self._metrics: dict[int, dict[str, float]] = {}

    def read(self, facts: dict[RunFolder, JsonObject]) -> tuple[list[str], Any]:
        """Return the command and the table of the sweep.

        `facts` are those of its runs so far.
        """
        # These modules need pydantic, which TensorBoard does not need.
        from lockstep.trials import results, table
        from lockstep.trials.ledger import Ledger

        if (changed_ns := modified_ns(self._folder.path / SWEEP)) != self._changed:
            self._ledger = Ledger.open(self._folder.path)
            self._config = table.config_of(self._ledger)
            self._table = None
            self._changed = changed_ns
        objective = results.monitored_objective(self._config)
        is_changed = self._table is None
        for trial in self._ledger.trials:
            version = trial, facts.get(trial.folder), modified_ns(trial.folder.summary)
            if version != self._seen.get(trial.number):
                is_changed = True
                self._seen[trial.number] = version
                self._rows.pop(trial.number, None)
                best = results.best_epoch(trial.folder, objective)
                self._metrics[trial.number] = {
                    metric: value for metric, value in best.items() if "/" in metric
                }
        if is_changed:
            self._table = table.table(
                self._ledger,
                objective,
                {},
                cache=self._rows,
                is_search=self._config.search is not None,
            )
        return list(map(str, self._ledger.command)), self._table

    def describe(self, facts: dict[RunFolder, JsonObject]) -> JsonObject:
        """Return the table of the sweep for its page."""
        _, table = self.read(facts)
        trials = [self._trial(row, table, facts.get(row.trial.folder, {})) for row in table.rows]
        metrics = [metric for trial in trials for metric in trial["values"]]
        return {
            "keys": table.keys,
            # This is the direction of the first metric, by which the trials are sorted.
            "is_max": table.objective.is_max,
            "metrics": list(dict.fromkeys([table.objective.name, *table.tests, *metrics])),
            "trials": trials,
            "repeated": [[row.trial.number for row in rows] for _, rows in table.rows_by_setting],
            "groups": [group._asdict() for group in table.groups],
            "best_trials": table.best.trials if table.best is not None else [],
            "is_search": table.is_search,
        }

    def _trial(self, row: Any, table: Any, facts: JsonObject) -> JsonObject:
        values = self._metrics[row.trial.number] | {table.objective.name: row.value} | row.tests
        return {
            "trial": row.trial.number,
            "id": facts.get("id"),
            "settings": {key: row.settings[key] for key in table.keys if key in row.settings},
            "state": row.facts["state"],
            "epoch": row.facts.get("epoch"),
            "device": row.trial.device,
            "values": {metric: value for metric, value in values.items() if is_number(value)},
            "training_s": row.training_s,
            "note": facts.get("note", ""),
            "tags": facts.get("tags", []),
        }


def _row(name: str, trials: list[JsonObject]) -> JsonObject:
    percents = [100.0 if trial["state"] in DONE else trial.get("percent", 0.0) for trial in trials]
    return {
        "id": f"sweep {name}",
        "run": name,
        "trials": [trial["id"] for trial in trials],
        "num_done": sum(trial["state"] in DONE for trial in trials),
        "state": min((trial["state"] for trial in trials), key=STATES.index),
        "percent": statistics.fmean(percents),
        "tags": sorted({tag for trial in trials for tag in trial.get("tags", [])}),
        "started": min((trial["started"] for trial in trials if "started" in trial), default=None),
    }

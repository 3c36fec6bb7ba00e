"""The sweeps of the tab Training: all trials with their settings and metrics. Unchanged trials are not read again."""

import threading
from typing import Any

from lockstep.runs.discovery import Watched, is_number, modified_ns
from lockstep.runs.folder import SWEEP, RunFolder


class Sweeps:
    """The sweeps below the folder of `watched`."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._sweeps: dict[str, _Sweep] = {}
        self._lock = threading.Lock()  # TensorBoard answers each request in a thread

    def describe(self, name: str) -> dict[str, Any]:
        """Return a sweep by its name. Raises KeyError for an unknown one, ValueError for one that cannot be read."""
        facts = {run.folder: self._watched.facts(run) for run in self._watched.runs().values() if run.sweep == name}
        if not facts:
            raise KeyError(name)
        with self._lock:
            sweep = self._sweeps.setdefault(name, _Sweep(RunFolder(self._watched.root / name)))
            return sweep.describe(facts)


class _Sweep:
    """One sweep. A row and its metrics are kept until the trial, the facts of its run or its summary change."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._changed = 0
        self._seen: dict[int, Any] = {}
        self._rows: dict[int, Any] = {}
        self._metrics: dict[int, dict[str, float]] = {}

    def describe(self, facts: dict[RunFolder, dict[str, Any]]) -> dict[str, Any]:
        """Return the table of the sweep; `facts` are those of its runs so far."""
        from lockstep.sweeps import results, table  # these need pydantic, which TensorBoard does not
        from lockstep.sweeps.ledger import Ledger

        if (changed := modified_ns(self._folder.path / SWEEP)) != self._changed:
            self._ledger = Ledger.open(self._folder.path, None, ())
            self._config = table.config_of(self._ledger)
            self._changed = changed
        objective, is_search = results.monitored_objective(self._config), self._config.search is not None
        for trial in self._ledger.trials:
            seen = trial, facts.get(trial.folder), modified_ns(trial.folder.summary)
            if seen != self._seen.get(trial.number):
                self._seen[trial.number] = seen
                self._rows.pop(trial.number, None)
                best = results.best_epoch(trial.folder, objective)
                self._metrics[trial.number] = {name: value for name, value in best.items() if "/" in name}
        made = table.table(self._ledger, objective, {}, known=self._rows, is_search=is_search)
        trials = [self._trial(row, made, facts.get(row.trial.folder, {})) for row in made.rows]
        names = dict.fromkeys([objective.name, *made.tests])
        return {
            "keys": made.keys,
            "is_max": objective.is_max,  # of the first metric, by which the trials are sorted
            "metrics": list(names | dict.fromkeys(name for trial in trials for name in trial["values"])),
            "trials": trials,
            "repeated": [[row.trial.number for row in rows] for _, rows in made.repeated],
            "groups": [group._asdict() for group in made.groups],
            "best_trials": made.best.trials if made.best is not None else [],
            "is_search": is_search,
        }

    def _trial(self, row: Any, made: Any, facts: dict[str, Any]) -> dict[str, Any]:
        values = self._metrics[row.trial.number] | {made.objective.name: row.value} | row.tests
        return {
            "trial": row.trial.number,
            "id": facts.get("id"),
            "settings": {key: row.settings[key] for key in made.keys if key in row.settings},
            "state": row.facts["state"],
            "epoch": row.facts.get("epoch"),
            "device": row.trial.device,
            "values": {name: value for name, value in values.items() if is_number(value)},
            "training_s": row.training_s,
            "note": facts.get("note", ""),
            "tags": facts.get("tags", []),
        }

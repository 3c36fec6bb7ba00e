"""The sweeps of the tab Training: all trials with their settings and metrics. Unchanged trials are not read again."""

import threading
from typing import Any

from lockstep.runs.discovery import DiscoveredRun, Watched, is_number, modified_ns
from lockstep.runs.folder import SWEEP, RunFolder


class Sweeps:
    """The sweeps below the folder of `watched`."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._sweeps: dict[str, _Sweep] = {}
        self._lock = threading.Lock()  # TensorBoard answers each request in a thread

    def describe(self, name: str, filter_text: str) -> dict[str, Any]:
        """Return a sweep by its name. Raises KeyError for an unknown one, ValueError for one that cannot be read."""
        facts = {run.folder: self._watched.facts(run) for run in self._watched.runs().values() if run.sweep == name}
        if not facts:
            raise KeyError(name)
        with self._lock:
            runs, shown = self._sweeps.setdefault(name, _Sweep(RunFolder(self._watched.root / name))).describe(facts)
        from lockstep.monitoring.selection import select_runs  # it needs rich, which TensorBoard does not

        return select_runs(runs, filter_text, name) | shown


class _Sweep:
    """One sweep. A row and its metrics are kept until the trial, the facts of its run or its summary change."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._changed = 0
        self._seen: dict[int, Any] = {}
        self._rows: dict[int, Any] = {}
        self._metrics: dict[int, dict[str, float]] = {}

    def describe(self, facts: dict[RunFolder, dict[str, Any]]) -> tuple[dict[int, Any], dict[str, Any]]:
        """Return the trials by number, as runs, and the table of the sweep; `facts` are those of its runs so far."""
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
        runs = {row.trial.number: _as_run(row, trial, facts) for row, trial in zip(made.rows, trials, strict=True)}
        return runs, {
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


def _as_run(row: Any, trial: dict[str, Any], facts: dict[RunFolder, dict[str, Any]]) -> Any:
    """Return a trial as the run that a filter takes: with its number, its results and the metrics of its best epoch."""
    from lockstep.monitoring.selection import Listed

    folder = row.trial.folder
    unknown = {"run": folder.path.name, "overrides": [f"{key}={value}" for key, value in row.settings.items()]}
    known = {"metrics": {}, **unknown, **trial, **facts.get(folder, {})}
    run = DiscoveredRun(str(trial["id"]), known["run"], folder)
    return Listed(run, known | {"metrics": known["metrics"] | trial["values"]}, known.get("started", 0.0))

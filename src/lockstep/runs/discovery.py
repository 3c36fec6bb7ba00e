"""All runs below a folder, for tools that list, compare, stop and remove them. Standard library only."""

import hashlib
import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.runs import naming
from lockstep.runs.folder import CODE, ENDED_STATES, LIVE_STATES, SWEEP, WANDB, RunFolder
from lockstep.runs.naming import shown

DEPTH = 6  # folders below the root that are searched
MOST = 5000
STATES = ("not started", *LIVE_STATES, *ENDED_STATES, "no signal", "broken")
NUMBERS = (
    "workers", "train_images", "pid", "started", "updated", "epoch", "max_epochs", "step", "total_steps", "percent",
    "elapsed_s", "epoch_remaining_s", "remaining_s", "images_per_s", "learning_rate", "epoch_s", "best",
)  # fmt: skip
TEXTS = ("reason", "name", "device", "precision", "host", "monitor", "mode")


@dataclass(frozen=True)
class DiscoveredRun:
    """A run: its folder, its name below the folder that was searched, and an id that tells nothing of the path.

    `sweep` is the name of the folder of its sweep below the one that was searched, None of a run of its own.
    """

    id: str
    name: str
    folder: RunFolder
    sweep: str | None = None


def scan(root: Path) -> dict[str, DiscoveredRun]:
    """Every run below `root`, itself included, by its id.

    Links are not followed, hidden folders and the code of jobs not entered.
    """
    runs: dict[str, DiscoveredRun] = {}
    waiting: list[tuple[Path, int, str | None]] = [(root, 0, None)]
    while waiting and len(runs) < MOST:
        path, depth, sweep = waiting.pop()
        try:
            with os.scandir(path) as entries:
                listed = list(entries)
        except OSError:  # gone, or not for us to read
            continue
        files = {entry.name for entry in listed if entry.name in ("config.yaml", SWEEP) and _is_file(entry)}
        if SWEEP in files and depth > 0:  # where one sweep is all there is, its trials are the rows
            sweep = os.path.relpath(path, root)
        if "config.yaml" in files:
            run = _discovered(RunFolder(path), os.path.relpath(path, root), sweep)
            runs[run.id] = run
        if depth < DEPTH:
            of_others = {CODE, WANDB} if "config.yaml" in files else {CODE}  # they hold config.yaml files, too
            kept = (e for e in listed if not e.name.startswith(".") and e.name not in of_others)
            folders = (e for e in kept if e.is_dir(follow_symlinks=False))
            waiting += [(Path(entry.path), depth + 1, sweep) for entry in folders]
    return runs


def _is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)


def _discovered(folder: RunFolder, name: str, sweep: str | None = None) -> DiscoveredRun:
    return DiscoveredRun(hashlib.sha256(os.fsencode(name)).hexdigest()[:16], name, folder, sweep)


def look_at(folder: RunFolder) -> dict[str, Any]:
    """What one run says of itself; `run` is its path as a person types it."""
    return look(_discovered(folder, shown(folder.path)))


def look(run: DiscoveredRun) -> dict[str, Any]:
    """What a run says of itself: the known fields of status.json that have the right type, never more.

    `state` is one of STATES, `metrics` maps names to numbers, `overrides` is what was typed.
    """
    folder = run.folder
    facts: dict[str, Any] = {"id": run.id, "run": run.name, "metrics": {}, "overrides": _overrides(folder)}
    facts |= {"sweep": run.sweep} if run.sweep is not None else {}
    try:
        status = folder.read_status()
    except (OSError, ValueError) as error:
        return facts | {"state": "broken", "reason": f"status.json cannot be read: {type(error).__name__}"}
    if not status:
        return facts | {"state": _state_before_status(folder)}
    if status.get("state") not in STATES:
        return facts | {"state": "broken", "reason": "status.json names no state of a run"}
    facts |= {name: status[name] for name in NUMBERS if _is_number(status.get(name))}
    facts |= {name: status[name][:500] for name in ("state", *TEXTS) if isinstance(status.get(name), str)}
    if isinstance(status.get("metrics"), dict):
        facts["metrics"] = {name: value for name, value in status["metrics"].items() if _is_number(value)}
    return facts


class Watched:
    """The runs below a folder; what has ended is read again only where its status.json has changed."""

    def __init__(self, root: Path, *, scan_every_s: float) -> None:
        self.root = root
        self._scan_every_s = scan_every_s
        self._next_scan = 0.0
        self._runs: dict[str, DiscoveredRun] = {}
        self._known: dict[str, tuple[int, dict[str, Any]]] = {}

    def runs(self, *, is_fresh: bool = False) -> dict[str, DiscoveredRun]:
        """The runs by their ids, searched for again when that was long ago or `is_fresh` asks for it."""
        started = time.monotonic()
        if is_fresh or started >= self._next_scan:
            self._runs = scan(self.root)
            ended = time.monotonic()
            self._next_scan = ended + max(self._scan_every_s, 50 * (ended - started))  # 2 % of the time at most
        return self._runs

    def look(self) -> list[dict[str, Any]]:
        """The facts of every run, the newest run first."""
        facts = [self._look(run) for run in self.runs().values()]
        return sorted(facts, key=lambda run_facts: (run_facts.get("started", 0.0), run_facts["run"]), reverse=True)

    def _look(self, run: DiscoveredRun) -> dict[str, Any]:
        changed = run.folder.status_changed_ns()
        before, facts = self._known.get(run.id, (0, {}))
        if changed != before or facts.get("state") not in ENDED_STATES:
            facts = look(run)
            self._known[run.id] = (changed, facts)
        return facts


def differing_overrides(listed: list[dict[str, Any]]) -> dict[str, str]:
    """For every run by its id, what was typed for it but not for all of `listed`, in one line.

    First come the keys whose values tell the most runs apart, for the line may be cut.
    """
    times = Counter(text for facts in listed for text in set(facts["overrides"]))
    shared: dict[str, int] = {}  # by key, how many runs share a value
    for text, count in times.items():
        shared[_key(text)] = max(count, shared.get(_key(text), 0))
    everywhere = len(listed) if len(listed) > 1 else 2

    def differing(overrides: list[str]) -> str:
        return " ".join(sorted((t for t in overrides if times[t] < everywhere), key=lambda text: shared[_key(text)]))

    return {facts["id"]: differing(facts["overrides"]) for facts in listed}


def _key(override: str) -> str:
    return override.partition("=")[0]


def resume_command(run: DiscoveredRun) -> str | None:
    """What goes on with a run, typed in the current folder; None for one that is live, through, or saved nothing."""
    folder = run.folder
    if look(run)["state"] not in ("stopped", "failed", "no signal") or not folder.last_checkpoint.is_file():
        return None
    return naming.resume_command(folder.path)


def _overrides(folder: RunFolder) -> list[str]:
    try:
        return [str(override) for override in folder.read_overrides()]
    except (OSError, ValueError, TypeError):
        return []


def _state_before_status(folder: RunFolder) -> str:
    if folder.is_locked():
        return "stopping" if folder.stop_flag.is_file() else "starting"
    return "failed" if folder.failure.exists() else "not started"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18


def read_rows(folder: RunFolder) -> list[dict[str, float]]:
    """The finite numbers of metrics.csv, a row per epoch; empty where there is no such file or it cannot be read."""
    try:
        rows = folder.read_metrics()
    except (OSError, ValueError):
        return []
    return [{name: value for name, text in row.items() if _is_number(value := _value(text))} for row in rows]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):  # no cell, or no number
        return None


def read_tests(folder: RunFolder) -> dict[str, float]:
    """What the test of a finished run measured, by its name in summary.json; empty for others."""
    try:
        summary = folder.read_summary()
    except (OSError, ValueError):
        return {}
    return {name: value for name, value in summary.items() if is_test(name) and _is_number(value)}


def is_test(name: str) -> bool:
    """Whether a number of summary.json is one that the test measured."""
    return name.startswith("test_") and name != "test_images"


def read_confusion(folder: RunFolder) -> dict[str, Any] | None:
    """The newest confusion matrix of a run, that of the test before that of validations; None where there is none.

    `split`, `step`, `classes` (C names), `num_classes` of which these are some, and `counts` (C, C), true classes down.
    """
    for split in ("test", "val"):
        try:
            confusion = folder.read_confusion(split)
        except (OSError, ValueError):
            continue
        if confusion:
            return {"split": split, **confusion}
    return None

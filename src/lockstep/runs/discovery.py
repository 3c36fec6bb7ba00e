"""Find and read all runs below a folder.

It serves tools that list, compare, stop and remove runs, and uses the standard library only.
"""

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.runs import naming
from lockstep.runs.files import JsonObject, from_json, read_json
from lockstep.runs.folder import CODE, ENDED_STATES, LIVE_STATES, SWEEP, WANDB, RunFolder
from lockstep.runs.ranking import LOSS, rank

Row = dict[str, float]  # numbers of an epoch
DEFAULT_ROOT = "outputs"
DEPTH = 6  # levels of folders that are searched
STATES = ("not started", *LIVE_STATES, *ENDED_STATES, "no signal", "broken")
NUMBERS = (
    "workers", "train_images", "pid", "started", "updated", "epoch", "max_epochs", "step",
    "total_steps", "percent", "elapsed_s", "epoch_remaining_s", "remaining_s", "images_per_s",
    "learning_rate", "epoch_s", "best", "skipped_steps",
)  # fmt: skip
# These columns of metrics.csv are not metrics.
PROGRESS = ("epoch", "step", "seconds", "images_per_s", "learning_rate", "skipped_steps")
MAX_NOTES_BYTES = 16_384  # bytes of a request; notes.json may have up to four times as many
TEXTS = (
    "state",
    "reason",
    "name",
    "worker_weights",
    "device",
    "precision",
    "host",
    "monitor",
    "mode",
    "weights_sha256",
)


@dataclass(frozen=True)
class DiscoveredRun:
    """A run: its folder, its name below the root of the search, and an id.

    The id does not reveal the path.
    """

    id: str
    name: str
    folder: RunFolder
    sweep: str | None = None  # name of the folder of its sweep below the root


def scan(root: Path, *, file: str = "config.yaml") -> dict[str, DiscoveredRun]:
    """Find every run below `root`, which is a folder with `file`, and return the runs by id.

    Skips links, hidden folders and the code of jobs.
    """
    runs: dict[str, DiscoveredRun] = {}
    stack: list[tuple[Path, int, str | None]] = [(root, 0, None)]
    while stack:
        path, depth, sweep = stack.pop()
        try:
            with os.scandir(path) as entries:
                folder_entries = list(entries)
        except OSError:  # The folder was removed since, or is not readable.
            continue
        name = os.path.relpath(path, root)
        files = {entry.name for entry in folder_entries if entry.is_file(follow_symlinks=False)}
        if SWEEP in files and depth > 0:  # Inside a sweep, its trials are the rows.
            sweep = name
        if file in files:
            run = _discover(RunFolder(path), name, sweep)
            runs[run.id] = run
        if depth < DEPTH:
            # WANDB in a run contains config.yaml files that belong to no run.
            skipped_names = {CODE, WANDB} if file in files else {CODE}
            stack += [
                (Path(entry.path), depth + 1, sweep)
                for entry in folder_entries
                if entry.is_dir(follow_symlinks=False)
                and entry.name[0] != "."
                and entry.name not in skipped_names
            ]
    return runs


def _discover(folder: RunFolder, name: str, sweep: str | None = None) -> DiscoveredRun:
    return DiscoveredRun(hashlib.sha256(os.fsencode(name)).hexdigest()[:16], name, folder, sweep)


def read_run_folder(folder: RunFolder) -> JsonObject:
    """Read one run by its folder, as `read_run` does.

    `run` is the path as a user types it.
    """
    return read_run(_discover(folder, naming.display_path(folder.path)))


def read_run(run: DiscoveredRun) -> JsonObject:
    """Read a run, with the known fields of its status that have the right type.

    Other fields are ignored, because anybody may have written the file. `state` is one of STATES,
    `metrics` maps names to numbers, and `overrides` are those of the command line. `note` and
    `tags` are present if somebody wrote them, and `noted` is the time of that.
    """
    folder = run.folder
    overrides = _or_empty([], folder.read_overrides)
    facts: JsonObject = {"id": run.id, "run": run.name, "metrics": {}, "overrides": overrides}
    if run.sweep is not None:
        facts["sweep"] = run.sweep
    facts |= _notes(folder)
    try:
        status = folder.read_status()
    except (OSError, ValueError) as error:
        reason = f"status.json cannot be read: {type(error).__name__}"
        return facts | {"state": "broken", "reason": reason}
    if not status:
        return facts | {"state": _state_before_status(folder)}
    if status.get("state") not in STATES:
        return facts | {"state": "broken", "reason": "status.json contains no state of a run"}
    facts |= {name: status[name] for name in NUMBERS if is_number(status.get(name))}
    facts |= {name: status[name][:500] for name in TEXTS if isinstance(status.get(name), str)}
    metrics = status.get("metrics")
    if isinstance(metrics, dict):
        facts["metrics"] = {name: value for name, value in metrics.items() if is_number(value)}
    return facts


class RunWatcher:
    """The runs below a folder.

    Ended runs are read again only when their status.json or notes.json changes.
    """

    def __init__(self, root: Path, *, scan_every_s: float) -> None:
        self.root = root
        self._scan_every_s = scan_every_s
        self._next_scan = 0.0
        self._runs: dict[str, DiscoveredRun] = {}
        self._known: dict[str, tuple[tuple[int, int], JsonObject]] = {}

    def runs(self, *, is_fresh: bool = False) -> dict[str, DiscoveredRun]:
        """Return the runs by id.

        Search again if the last search is old, or if `is_fresh`.
        """
        start_s = time.monotonic()
        if is_fresh or start_s >= self._next_scan:
            self._runs = scan(self.root)
            end_s = time.monotonic()
            # Searches take at most 2 % of the time.
            self._next_scan = end_s + max(self._scan_every_s, 50 * (end_s - start_s))
        return self._runs

    def facts(self, run: DiscoveredRun) -> JsonObject:
        change_times = modified_ns(run.folder.status_file), modified_ns(run.folder.notes)
        known_times, facts = self._known.get(run.id, (None, {}))
        if change_times != known_times or facts.get("state") not in ENDED_STATES:
            facts = restrict_to_epoch(read_run(run), run.folder)
            self._known[run.id] = (change_times, facts)
        return facts


def modified_ns(path: Path) -> int:
    """Return the time of the last change of a file in nanoseconds, or 0 without a file."""
    try:
        return path.stat(follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def differing_overrides(run_facts: list[JsonObject]) -> dict[str, str]:
    """Return, by run id, the overrides that not all runs of `run_facts` share, in one line.

    Keys that distinguish the most runs come first, because a table may truncate the line.
    """
    counts = Counter(override for facts in run_facts for override in set(facts["overrides"]))
    # From rare to frequent values, so that each key keeps the count of its most frequent one.
    max_counts = {_key(override): count for override, count in reversed(counts.most_common())}
    num_runs = max(2, len(run_facts))

    def differing_text(overrides: list[str]) -> str:
        differing = [override for override in overrides if counts[override] < num_runs]
        return " ".join(sorted(differing, key=lambda override: max_counts[_key(override)]))

    return {facts["id"]: differing_text(facts["overrides"]) for facts in run_facts}


def _key(override: str) -> str:
    return override.partition("=")[0]


def resume_command(run: DiscoveredRun) -> str | None:
    """Return the command that resumes a run.

    Returns None for a live or finished run, and for one without a checkpoint. Also returns None for
    a run that failed because of its loss.
    """
    facts = read_run(run)
    is_unfinished = facts["state"] in ("stopped", "failed", "no signal")
    if is_unfinished and not has_bad_loss(facts) and run.folder.last_checkpoint.is_file():
        return naming.resume_command(run.folder.path)
    return None


def has_bad_loss(facts: JsonObject) -> bool:
    """Return whether a run failed because its loss was NaN or infinite.

    It fails again if it is resumed unchanged.
    """
    reason = facts.get("reason", "")
    return facts["state"] == "failed" and reason.startswith("The loss is not finite")


def _or_empty(empty: Any, read: Callable[..., Any], *arguments: Any) -> Any:
    """Return `read(*arguments)`, or `empty` for a file that cannot be read."""
    try:
        return read(*arguments)
    except (OSError, ValueError, TypeError):
        return empty


def _notes(folder: RunFolder) -> JsonObject:
    """Read the note and the tags of a run, if there are any.

    A file that is longer than the board writes is not read.
    """
    changed_ns = modified_ns(folder.notes)
    content = _or_empty({}, read_json, folder.notes, 4 * MAX_NOTES_BYTES)
    note = content.get("note")
    tags = content.get("tags")
    facts: JsonObject = {}
    if content:
        facts["noted"] = changed_ns / 1e9
    if note and isinstance(note, str):
        facts["note"] = note
    texts = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    if texts:
        facts["tags"] = texts
    return facts


def _state_before_status(folder: RunFolder) -> str:
    if folder.is_locked():
        return "stopping" if folder.stop_flag.is_file() else "starting"
    return "failed" if folder.failure.exists() else "not started"


def read_rows(folder: RunFolder) -> list[Row]:
    """Read the finite numbers of metrics.csv, one row per epoch.

    The list is empty without a readable file.
    """
    rows = [_numbers(row) for row in _or_empty([], folder.read_metrics)]
    return [row for row in rows if "epoch" in row]


def _numbers(row: dict[str, str]) -> Row:
    values = {column: _or_empty(None, from_json, cell) for column, cell in row.items()}
    return {column: value for column, value in values.items() if is_number(value)}


def best_row(rows: list[Row], monitor: str, *, is_max: bool) -> Row:
    """Return the row of the epoch of best.ckpt, which is the last one of equal ones.

    The row is empty if no row has the metric.
    """
    monitored = [row for row in reversed(rows) if monitor in row]
    return min(
        monitored, key=lambda row: rank(row[monitor], row.get(LOSS), is_max=is_max), default={}
    )


def restrict_to_epoch(facts: JsonObject, folder: RunFolder) -> JsonObject:
    """Return the facts of `read_run`, with metrics of the test and of one epoch, `metrics_epoch`.

    For a finished run it is the best epoch, whose network was tested. Otherwise it is the newest
    complete one.
    """
    rows = read_rows(folder)
    if not rows:
        return facts
    row = rows[-1]
    if facts["state"] == "finished" and "monitor" in facts:
        row = best_row(rows, facts["monitor"], is_max=facts.get("mode") == "max") or row
    metrics = {metric: value for metric, value in row.items() if metric not in PROGRESS}
    return facts | {"metrics": metrics | read_tests(folder), "metrics_epoch": int(row["epoch"])}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18


def read_summary(folder: RunFolder) -> JsonObject:
    """Read the result of a finished run, which is empty without a readable file."""
    return _or_empty({}, folder.read_summary)


def read_tests(folder: RunFolder) -> Row:
    """Read the test results of a finished run by metric, such as test/accuracy.

    The result is empty for other runs.
    """
    return {
        naming.metric_name(field): value
        for field, value in read_summary(folder).items()
        if field.startswith("test_") and field != "test_images" and is_number(value)
    }


def read_confusion(folder: RunFolder) -> JsonObject | None:
    """Read the newest confusion matrix of a run, or return None if there is none.

    The one of the test comes before that of the validation. The keys are `split`, `step`, `classes`
    (C names out of `num_classes`) and `counts` (C, C), with true classes as rows.
    """
    for split in ("test", "val"):
        if confusion := _or_empty({}, read_json, folder.confusion(split)):
            return {"split": split, **confusion}
    return None


@dataclass(frozen=True)
class Listed:
    """A run and its facts.

    `since` is the start of its last session, or else when it was created, in seconds since 1970.
    """

    discovered: DiscoveredRun
    facts: JsonObject
    since: float

    def value(self, key: str) -> Any:
        """Return a fact, a metric or a typed setting by its key, or None if the run has none."""
        pairs = (override.lstrip("+").partition("=") for override in self.facts["overrides"])
        settings = {setting: value for setting, _, value in pairs}
        aliases = {"started": self.since or None, "s/epoch": self.facts.get("epoch_s")}
        values = settings | self.facts["metrics"] | self.facts | aliases
        return values.get(key)


def all_runs(watcher: RunWatcher) -> list[Listed]:
    """List all runs, the newest first."""
    runs: list[Listed] = []
    for run in watcher.runs().values():
        facts = watcher.facts(run)
        since = facts.get("started") or modified_ns(run.folder.config) / 1e9
        runs.append(Listed(run, facts, since))
    return sorted(runs, key=lambda run: (run.since, run.discovered.name), reverse=True)


def root_of(folder: str) -> Path:
    """Return the folder to search.

    Raises FileNotFoundError if it does not exist, unless it is the default.
    """
    root = Path(folder)
    if folder != DEFAULT_ROOT and not root.is_dir():
        raise FileNotFoundError(
            f"{folder} is not a folder: give a folder of runs, or none for {DEFAULT_ROOT}/."
        )
    return root

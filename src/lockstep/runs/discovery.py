"""Find and read all runs below a folder.

It serves tools that list, compare, stop and remove runs, and uses the standard library only.
"""

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lockstep.runs import naming
from lockstep.runs.files import from_json, read_json
from lockstep.runs.folder import CODE, ENDED_STATES, LIVE_STATES, SWEEP, WANDB, RunFolder
from lockstep.runs.ranking import LOSS, rank

DEPTH = 6  # levels of folders that are searched
STATES = ("not started", *LIVE_STATES, *ENDED_STATES, "no signal", "broken")
NUMBERS = (
    "workers", "train_images", "pid", "started", "updated", "epoch", "max_epochs", "step",
    "total_steps", "percent", "elapsed_s", "epoch_remaining_s", "remaining_s", "images_per_s",
    "learning_rate", "epoch_s", "best", "skipped_steps",
)  # fmt: skip
# These columns of metrics.csv are not metrics.
PROGRESS = ("epoch", "step", "seconds", "images_per_s", "learning_rate", "skipped_steps")
MAX_NOTES_BYTES = 16_384  # bytes of a request, whose JSON in ASCII can be three times as long
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
T = TypeVar("T")


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
        files = {entry.name for entry in folder_entries if entry.is_file(follow_symlinks=False)}
        if SWEEP in files and depth > 0:  # Inside a sweep, its trials are the rows.
            sweep = os.path.relpath(path, root)
        skipped_names = {CODE}
        if file in files:
            run = _discover(RunFolder(path), os.path.relpath(path, root), sweep)
            runs[run.id] = run
            # This folder contains config.yaml files that belong to no run.
            skipped_names.add(WANDB)
        if depth < DEPTH:
            subfolders = (
                entry
                for entry in folder_entries
                if entry.is_dir(follow_symlinks=False)
                and entry.name[0] != "."
                and entry.name not in skipped_names
            )
            stack += [(Path(entry.path), depth + 1, sweep) for entry in subfolders]
    return runs


def _discover(folder: RunFolder, name: str, sweep: str | None = None) -> DiscoveredRun:
    return DiscoveredRun(hashlib.sha256(os.fsencode(name)).hexdigest()[:16], name, folder, sweep)


def read_run_folder(folder: RunFolder) -> dict[str, Any]:
    """Read one run by its folder, as `read_run` does.

    `run` is the path as a user types it.
    """
    return read_run(_discover(folder, naming.display_path(folder.path)))


def read_run(run: DiscoveredRun) -> dict[str, Any]:
    """Read a run, with the known fields of its status that have the right type.

    Other fields are ignored, because anybody may have written the file. `state` is one of STATES,
    `metrics` maps names to numbers, and `overrides` are those of the command line. `note` and
    `tags` are present if somebody wrote them, and `noted` is the time of that.
    """
    folder = run.folder
    overrides = _or_empty(lambda: [str(override) for override in folder.read_overrides()], [])
    facts: dict[str, Any] = {"id": run.id, "run": run.name, "metrics": {}, "overrides": overrides}
    facts |= {"sweep": run.sweep} if run.sweep is not None else {}
    facts |= _notes(folder)
    try:
        status = folder.read_status()
    except (OSError, ValueError) as error:
        return facts | {
            "state": "broken",
            "reason": f"status.json cannot be read: {type(error).__name__}",
        }
    if not status:
        return facts | {"state": _state_before_status(folder)}
    if status.get("state") not in STATES:
        return facts | {"state": "broken", "reason": "status.json contains no state of a run"}
    facts |= {name: status[name] for name in NUMBERS if is_number(status.get(name))}
    facts |= {name: status[name][:500] for name in TEXTS if isinstance(status.get(name), str)}
    if isinstance(status.get("metrics"), dict):
        facts["metrics"] = {
            name: value for name, value in status["metrics"].items() if is_number(value)
        }
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
        self._known: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}

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

    def facts(self, run: DiscoveredRun) -> dict[str, Any]:
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


def differing_overrides(run_facts: list[dict[str, Any]]) -> dict[str, str]:
    """Return, by run id, the overrides that not all runs of `run_facts` share, in one line.

    Keys that distinguish the most runs come first, because a table may truncate the line.
    """
    counts = Counter(override for facts in run_facts for override in set(facts["overrides"]))
    # For each key, this is the maximum number of runs that share a value.
    max_counts: dict[str, int] = {}
    for override, count in counts.items():
        max_counts[_key(override)] = max(count, max_counts.get(_key(override), 0))
    num_runs = len(run_facts) if len(run_facts) > 1 else 2

    def differing_text(overrides: list[str]) -> str:
        return " ".join(
            sorted(
                (override for override in overrides if counts[override] < num_runs),
                key=lambda override: max_counts[_key(override)],
            )
        )

    return {facts["id"]: differing_text(facts["overrides"]) for facts in run_facts}


def _key(override: str) -> str:
    return override.partition("=")[0]


def resume_command(run: DiscoveredRun) -> str | None:
    """Return the command that resumes a run.

    Returns None for a live or finished run, and for one without a checkpoint. Also returns None for
    a run that failed because of its loss.
    """
    folder, facts = run.folder, read_run(run)
    if (
        facts["state"] not in ("stopped", "failed", "no signal")
        or not folder.last_checkpoint.is_file()
    ):
        return None
    if has_bad_loss(facts):
        return None
    return naming.resume_command(folder.path)


def has_bad_loss(facts: dict[str, Any]) -> bool:
    """Return whether a run failed because its loss was NaN or infinite.

    It fails again if it is resumed unchanged.
    """
    return facts["state"] == "failed" and facts.get("reason", "").startswith(
        "The loss is not finite"
    )


def _or_empty(read: Callable[[], T], empty: T) -> T:
    """Return `read()`, or `empty` for a file that cannot be read."""
    try:
        return read()
    except (OSError, ValueError, TypeError):
        return empty


def _notes(folder: RunFolder) -> dict[str, Any]:
    """Read the note and the tags of a run, if there are any.

    A file that is longer than the board writes is not read.
    """
    changed_ns = modified_ns(folder.notes)
    content = (
        _or_empty(partial(read_json, folder.notes, 4 * MAX_NOTES_BYTES), {}) if changed_ns else {}
    )
    note, tags = content.get("note"), content.get("tags")
    facts: dict[str, Any] = {"noted": changed_ns / 1e9} if content else {}
    facts |= {"note": note} if note and isinstance(note, str) else {}
    valid_tags = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    return facts | ({"tags": valid_tags} if valid_tags else {})


def _state_before_status(folder: RunFolder) -> str:
    if folder.is_locked():
        return "stopping" if folder.stop_flag.is_file() else "starting"
    return "failed" if folder.failure.exists() else "not started"


def read_rows(folder: RunFolder) -> list[dict[str, float]]:
    """Read the finite numbers of metrics.csv, one row per epoch.

    The list is empty without a readable file.
    """
    cells = _or_empty(folder.read_metrics, [])
    rows = [
        {column: value for column, cell in row.items() if (value := _number(cell)) is not None}
        for row in cells
    ]
    return [row for row in rows if "epoch" in row]


def best_row(rows: list[dict[str, float]], monitor: str, *, is_max: bool) -> dict[str, float]:
    """Return the row of the epoch of best.ckpt, which is the last one of equal ones.

    The row is empty if no row has the metric.
    """
    monitored = [row for row in reversed(rows) if monitor in row]
    return min(
        monitored, key=lambda row: rank(row[monitor], row.get(LOSS), is_max=is_max), default={}
    )


def restrict_to_epoch(facts: dict[str, Any], folder: RunFolder) -> dict[str, Any]:
    """Return the facts of `read_run`, with metrics of the test and of one epoch, `metrics_epoch`.

    For a finished run it is the best epoch, whose network was tested. Otherwise it is the newest
    complete one.
    """
    rows = read_rows(folder)
    row = rows[-1] if rows else {}
    if facts["state"] == "finished" and "monitor" in facts:
        row = best_row(rows, facts["monitor"], is_max=facts.get("mode") == "max") or row
    if row:
        metrics = {metric: value for metric, value in row.items() if metric not in PROGRESS}
        return facts | {"metrics": metrics | read_tests(folder), "metrics_epoch": int(row["epoch"])}
    return facts


def _number(cell: str) -> float | None:
    value = _or_empty(partial(from_json, cell), None)
    return value if is_number(value) else None


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """Read the result of a finished run, which is empty without a readable file."""
    return _or_empty(folder.read_summary, {})


def read_tests(folder: RunFolder) -> dict[str, float]:
    """Read the test results of a finished run by metric, such as test/accuracy.

    The result is empty for other runs.
    """
    results = read_summary(folder).items()
    tests = {
        field: value
        for field, value in results
        if field.startswith("test_") and field != "test_images"
    }
    return {naming.metric_name(field): value for field, value in tests.items() if is_number(value)}


def read_confusion(folder: RunFolder) -> dict[str, Any] | None:
    """Read the newest confusion matrix of a run, or return None if there is none.

    The one of the test comes before that of the validation. The keys are `split`, `step`, `classes`
    (C names out of `num_classes`) and `counts` (C, C), with true classes as rows.
    """
    for split in ("test", "val"):
        if confusion := _or_empty(partial(read_json, folder.confusion(split)), {}):
            return {"split": split, **confusion}
    return None

"""Find and read all runs below a folder, for tools that list, compare, stop and remove them. Standard library only."""

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
    "workers", "train_images", "pid", "started", "updated", "epoch", "max_epochs", "step", "total_steps", "percent",
    "elapsed_s", "epoch_remaining_s", "remaining_s", "images_per_s", "learning_rate", "epoch_s", "best",
    "skipped_steps",
)  # fmt: skip
# columns of metrics.csv that are not metrics
PROGRESS = ("epoch", "step", "seconds", "images_per_s", "learning_rate", "skipped_steps")
MAX_NOTES_BYTES = 16_384  # bytes of a request; as JSON in ASCII they are up to three times as many
TEXTS = (
    "state",
    "reason",
    "name",
    "loads",
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
    """A run: its folder, its name below the root of the search, and an id that does not reveal the path."""

    id: str
    name: str
    folder: RunFolder
    sweep: str | None = None  # the name of the folder of its sweep below the root


def scan(root: Path, *, file: str = "config.yaml") -> dict[str, DiscoveredRun]:
    """Find every run below `root`, a folder with `file`, by id. Skips links, hidden folders and the code of jobs."""
    runs: dict[str, DiscoveredRun] = {}
    pending: list[tuple[Path, int, str | None]] = [(root, 0, None)]
    while pending:
        path, depth, sweep = pending.pop()
        try:
            with os.scandir(path) as entries:
                listed = list(entries)
        except OSError:  # removed since, or not readable
            continue
        files = {entry.name for entry in listed if entry.is_file(follow_symlinks=False)}
        if SWEEP in files and depth > 0:  # inside a sweep, its trials are the rows
            sweep = os.path.relpath(path, root)
        skipped = {CODE}
        if file in files:
            run = _discover(RunFolder(path), os.path.relpath(path, root), sweep)
            runs[run.id] = run
            skipped.add(WANDB)  # contains config.yaml files of its own
        if depth < DEPTH:
            kept = (
                e
                for e in listed
                if e.is_dir(follow_symlinks=False) and e.name[0] != "." and e.name not in skipped
            )
            pending += [(Path(entry.path), depth + 1, sweep) for entry in kept]
    return runs


def _discover(folder: RunFolder, name: str, sweep: str | None = None) -> DiscoveredRun:
    return DiscoveredRun(hashlib.sha256(os.fsencode(name)).hexdigest()[:16], name, folder, sweep)


def look_at(folder: RunFolder) -> dict[str, Any]:
    """Read one run by its folder, as `look` does; `run` is its path as a user types it."""
    return look(_discover(folder, naming.display_path(folder.path)))


def look(run: DiscoveredRun) -> dict[str, Any]:
    """Read a run: the known fields of its status that have the right type, since anybody may have written the file.

    `state` is one of STATES, `metrics` maps names to numbers, `overrides` are those of the command
    line. `note` and `tags` are there if somebody wrote them, and `noted` is when.
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


class Watched:
    """The runs below a folder; ended ones are read again only when their status.json or notes.json changes."""

    def __init__(self, root: Path, *, scan_every_s: float) -> None:
        self.root = root
        self._scan_every_s = scan_every_s
        self._next_scan = 0.0
        self._runs: dict[str, DiscoveredRun] = {}
        self._known: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}

    def runs(self, *, is_fresh: bool = False) -> dict[str, DiscoveredRun]:
        """Return the runs by id; search again if the last search is old, or if `is_fresh`."""
        started = time.monotonic()
        if is_fresh or started >= self._next_scan:
            self._runs = scan(self.root)
            ended = time.monotonic()
            # 2 % of the time at most
            self._next_scan = ended + max(self._scan_every_s, 50 * (ended - started))
        return self._runs

    def facts(self, run: DiscoveredRun) -> dict[str, Any]:
        changed = modified_ns(run.folder.status_file), modified_ns(run.folder.notes)
        before, facts = self._known.get(run.id, (None, {}))
        if changed != before or facts.get("state") not in ENDED_STATES:
            facts = restrict_to_epoch(look(run), run.folder)
            self._known[run.id] = (changed, facts)
        return facts


def modified_ns(path: Path) -> int:
    """Return the time of the last change of a file in nanoseconds, 0 without a file."""
    try:
        return path.stat(follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def differing_overrides(listed: list[dict[str, Any]]) -> dict[str, str]:
    """By run id, the overrides that not all runs of `listed` share, in one line.

    Keys that distinguish the most runs come first, because a table may cut the line.
    """
    times = Counter(text for facts in listed for text in set(facts["overrides"]))
    shared: dict[str, int] = {}  # by key, how many runs share a value
    for text, count in times.items():
        shared[_key(text)] = max(count, shared.get(_key(text), 0))
    everywhere = len(listed) if len(listed) > 1 else 2

    def differing_text(overrides: list[str]) -> str:
        return " ".join(
            sorted(
                (t for t in overrides if times[t] < everywhere), key=lambda text: shared[_key(text)]
            )
        )

    return {facts["id"]: differing_text(facts["overrides"]) for facts in listed}


def _key(override: str) -> str:
    return override.partition("=")[0]


def resume_command(run: DiscoveredRun) -> str | None:
    """Return the command that resumes a run; None for a live or finished run, or without a checkpoint."""
    folder, facts = run.folder, look(run)
    if (
        facts["state"] not in ("stopped", "failed", "no signal")
        or not folder.last_checkpoint.is_file()
    ):
        return None
    if has_bad_loss(facts):
        return None
    return naming.resume_command(folder.path)


def has_bad_loss(facts: dict[str, Any]) -> bool:
    """Return whether a run failed because its loss was NaN or infinite: resumed as it is, it fails again."""
    return facts["state"] == "failed" and facts.get("reason", "").startswith(
        "The loss is not finite"
    )


def _or_empty(read: Callable[[], T], empty: T) -> T:
    """Return `read()`, or what is empty for a file that cannot be read."""
    try:
        return read()
    except (OSError, ValueError, TypeError):
        return empty


def _notes(folder: RunFolder) -> dict[str, Any]:
    """Read the note and the tags of a run, if there are any. What is longer than the board writes is not read."""
    changed = modified_ns(folder.notes)
    written = (
        _or_empty(partial(read_json, folder.notes, 4 * MAX_NOTES_BYTES), {}) if changed else {}
    )
    note, tags = written.get("note"), written.get("tags")
    facts: dict[str, Any] = {"noted": changed / 1e9} if written else {}
    facts |= {"note": note} if note and isinstance(note, str) else {}
    kept = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    return facts | ({"tags": kept} if kept else {})


def _state_before_status(folder: RunFolder) -> str:
    if folder.is_locked():
        return "stopping" if folder.stop_flag.is_file() else "starting"
    return "failed" if folder.failure.exists() else "not started"


def read_rows(folder: RunFolder) -> list[dict[str, float]]:
    """Read the finite numbers of metrics.csv, a row per epoch; empty without a readable file."""
    cells = _or_empty(folder.read_metrics, [])
    rows = [
        {name: value for name, text in row.items() if (value := _number(text)) is not None}
        for row in cells
    ]
    return [row for row in rows if "epoch" in row]


def best_row(rows: list[dict[str, float]], monitor: str, *, is_max: bool) -> dict[str, float]:
    """Return the row of the epoch of best.ckpt, of equal ones the last; empty if none has the metric."""
    monitored = [row for row in reversed(rows) if monitor in row]
    return min(
        monitored, key=lambda row: rank(row[monitor], row.get(LOSS), is_max=is_max), default={}
    )


def restrict_to_epoch(facts: dict[str, Any], folder: RunFolder) -> dict[str, Any]:
    """Return the facts of `look` with the metrics of one epoch, `metrics_epoch`, and those of the test.

    It is the best epoch of a finished run, whose network was tested, else the newest complete one.
    """
    rows = read_rows(folder)
    row = rows[-1] if rows else {}
    if facts["state"] == "finished" and "monitor" in facts:
        row = best_row(rows, facts["monitor"], is_max=facts.get("mode") == "max") or row
    if row:
        metrics = {name: value for name, value in row.items() if name not in PROGRESS}
        return facts | {"metrics": metrics | read_tests(folder), "metrics_epoch": int(row["epoch"])}
    return facts


def _number(text: str) -> float | None:
    value = _or_empty(partial(from_json, text), None)
    return value if is_number(value) else None


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """Read the result of a finished run; empty without a readable file."""
    return _or_empty(folder.read_summary, {})


def read_tests(folder: RunFolder) -> dict[str, float]:
    """Read the test results of a finished run by metric, such as test/accuracy; empty for others."""
    results = read_summary(folder).items()
    tests = {
        name: value for name, value in results if name.startswith("test_") and name != "test_images"
    }
    return {naming.metric_name(name): value for name, value in tests.items() if is_number(value)}


def read_confusion(folder: RunFolder) -> dict[str, Any] | None:
    """Read the newest confusion matrix of a run, of the test before the validation; None if there is none.

    `split`, `step`, `classes` (C names out of `num_classes`) and `counts` (C, C), true classes
    down.
    """
    for split in ("test", "val"):
        if confusion := _or_empty(partial(read_json, folder.confusion(split)), {}):
            return {"split": split, **confusion}
    return None

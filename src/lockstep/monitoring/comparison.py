"""`lockstep compare`: the settings in which runs differ, and what came of them, side by side."""

import json
from collections.abc import Sequence
from typing import Any

import yaml

from lockstep.monitoring import cells
from lockstep.runs.discovery import look_at, read_tests
from lockstep.runs.files import read_text, to_json
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import shown
from lockstep.system.redaction import redacted
from lockstep.system.terminal import duration, new_table, print_table, printable, terminal
from lockstep.system.trees import from_yaml, leaves

OTHERWISE = ("resume", "notify")  # settings that change nothing a run computes
Row = tuple[str, list[Any]]


def show(folders: Sequence[RunFolder], *, is_json: bool) -> int:
    """Print how runs differ. Returns the exit code."""
    settings, results = differences(folders), outcomes(folders)
    paths = [shown(folder.path) for folder in folders]
    if is_json:
        print(to_json({"runs": paths, "settings": dict(settings), "results": dict(results)}))
        return 0
    for number, path in enumerate(paths):
        print(f"{_letter(number)}  {printable(path)}")
    if not settings:
        print("\nAll settings are the same.")
    if settings:
        _show("settings", [(key, [_typed(value) for value in values]) for key, values in settings])
    _show("results", [(key, [_read(key, value) for value in values]) for key, values in results])
    return 0


def _show(title: str, rows: Sequence[tuple[str, list[str]]]) -> None:
    """Print a table with a column for each run, of which those that do not fit beside the others stand below them."""
    out, first, num_runs = terminal(), 0, len(rows[0][1])
    while first < num_runs:
        print()
        heads = [title, *map(_letter, range(first, num_runs))]
        made = new_table(heads, [[key, *values[first:]] for key, values in rows], out)
        print_table(made, out)
        first += len(made.columns) - 1


# -- settings ----------------------------------------------------------------------------------------------------------


def differences(folders: Sequence[RunFolder]) -> list[Row]:
    """Every key that has not the same value in all runs, with its values; None also where a run lacks it.

    Raises ValueError for a configuration that cannot be read.
    """
    flat = [_settings(folder) for folder in folders]
    keys = list(dict.fromkeys(key for settings in flat for key in settings))
    rows = [(key, [settings.get(key) for settings in flat]) for key in keys]
    # as JSON: True is 1 and 1.0 to Python
    return [(key, values) for key, values in rows if len({json.dumps(value) for value in values}) > 1]


def _settings(folder: RunFolder) -> dict[str, Any]:
    path = folder.config
    try:
        tree = from_yaml(read_text(path))
        if not isinstance(tree, dict):
            raise ValueError("no configuration")
        settings = leaves({key: value for key, value in tree.items() if key not in OTHERWISE}, "")
        # a date, which YAML knows, as text
        return {key: json.loads(json.dumps(redacted(value, key), default=str)) for key, value in settings}
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        what = " ".join(str(error).split())[:200] if isinstance(error, ValueError) else type(error).__name__
        raise ValueError(f"{shown(path)} cannot be read: {what}.") from error


# -- results -----------------------------------------------------------------------------------------------------------


def outcomes(folders: Sequence[RunFolder]) -> list[Row]:
    """How far the runs are, what they have measured and how fast, by name."""
    facts, tests = [look_at(folder) for folder in folders], [read_tests(folder) for folder in folders]
    rows: list[Row] = [("state", [run_facts["state"] for run_facts in facts])]
    rows += [(name, [run_facts.get(name) for run_facts in facts]) for name in ("epoch", "step", "monitor", "best")]
    # the newest values of a finished run have those of its test among them
    for metrics_of_runs in ([run_facts["metrics"] for run_facts in facts], tests):
        names = sorted({name for metrics in metrics_of_runs for name in metrics}, key=_metric_order)
        rows += [
            (name, [metrics.get(name) for metrics in metrics_of_runs]) for name in names if not name.startswith("test/")
        ]
    rows += [
        (name, [run_facts.get(name) for run_facts in facts])
        for name in ("epoch_s", "images_per_s", "workers", "device")
    ]
    return [(name, values) for name, values in rows if any(value is not None for value in values)]


def _metric_order(name: str) -> tuple[bool, bool, str]:
    return name.startswith("test"), name.startswith("val"), name


def _letter(i: int) -> str:
    return chr(ord("A") + i) if i < 26 else str(i + 1)


def _typed(value: Any) -> str:
    """A setting as a person types it in an override."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _read(key: str, value: Any) -> str:
    """A result as text for people."""
    if isinstance(value, str):
        return value
    if value is not None and key == "epoch_s":
        return duration(value)
    return f"{value:,.0f}" if value is not None and key == "images_per_s" else cells.number(value)

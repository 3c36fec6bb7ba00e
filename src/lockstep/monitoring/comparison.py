"""`lockstep compare`: shows settings in which runs differ, and their results, side by side."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from lockstep.monitoring import formatting
from lockstep.runs.discovery import read_run_folder, read_tests, restrict_to_epoch
from lockstep.runs.files import JsonObject, print_json, read_text
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import display_path, find
from lockstep.system.redaction import redact
from lockstep.system.terminal import (
    new_table,
    print_line,
    print_table,
    printable,
    terminal,
)
from lockstep.system.trees import from_yaml, leaves

OTHERWISE = ("resume", "sweep", "launcher")  # These settings do not change the training.
Row = tuple[str, list[Any]]


def compare_runs(names: Sequence[str], *, is_json: bool) -> int:
    if len(names) < 2:
        raise ValueError(f"compare needs two or more runs, or a sweep, not only {names[0]}.")
    folders = [find(name) for name in names]
    settings, results = differences(folders), outcomes(folders)
    paths = [display_path(folder.path) for folder in folders]
    if is_json:
        print_json({"runs": paths, "settings": dict(settings), "results": dict(results)})
        return 0
    for number, path in enumerate(paths):
        print(f"{letter(number)}  {printable(path)}")
    show_settings(settings)
    _show("results", [(key, [_result(key, value) for value in values]) for key, values in results])
    if settings:
        print()
        print_line(
            terminal(), "One run of each says nothing about the settings. Sweeps of their seeds do."
        )
    return 0


def show_settings(settings: Sequence[Row]) -> None:
    if not settings:
        print("\nAll settings are the same.")
    else:
        _show(
            "settings",
            [(key, [formatting.setting(value) for value in values]) for key, values in settings],
        )


def _show(title: str, rows: Sequence[tuple[str, list[str]]]) -> None:
    """Print a table with a column per run.

    Columns that do not fit into the terminal follow in further tables.
    """
    out, first_run, num_runs = terminal(), 0, len(rows[0][1])
    while first_run < num_runs:
        print()
        header = [title, *map(letter, range(first_run, num_runs))]
        table = new_table(header, [[key, *values[first_run:]] for key, values in rows], out)
        print_table(table, out)
        first_run += len(table.columns) - 1


def differences(folders: Sequence[RunFolder]) -> list[Row]:
    """List the keys whose values differ, with the value of each run, or None without the key.

    Raises ValueError for a configuration that cannot be read.
    """
    all_settings = [_settings(folder) for folder in folders]
    rows = _rows(all_settings, dict.fromkeys(key for settings in all_settings for key in settings))
    # The values are compared as JSON, because True equals 1 and 1.0 in Python.
    return [
        (key, values) for key, values in rows if len({json.dumps(value) for value in values}) > 1
    ]


def _settings(folder: RunFolder) -> JsonObject:
    try:
        tree = from_yaml(read_text(folder.config))
        settings = leaves({key: value for key, value in tree.items() if key not in OTHERWISE}, "")
        # A date, which is a type of YAML, becomes text.
        return {
            key: json.loads(json.dumps(redact(value, key), default=str)) for key, value in settings
        }
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
        yaml.YAMLError,
    ) as error:
        message = " ".join(str(error).split())[:200]
        raise ValueError(f"{display_path(folder.config)} cannot be read: {message}.") from error


def _rows(run_values: Sequence[JsonObject], keys: Iterable[str]) -> list[Row]:
    return [(key, [values.get(key) for values in run_values]) for key in keys]


def outcomes(folders: Sequence[RunFolder]) -> list[Row]:
    """List progress, metrics and speed of the runs by name."""
    facts = [restrict_to_epoch(read_run_folder(folder), folder) for folder in folders]
    metrics = [
        run_facts["metrics"] | read_tests(folder)
        for run_facts, folder in zip(facts, folders, strict=True)
    ]

    def order(metric: str) -> tuple[bool, bool, str]:
        return metric.startswith("test"), metric.startswith("val"), metric

    rows = _rows(facts, ("state", "epoch", "step", "monitor", "best", "metrics_epoch"))
    rows += _rows(metrics, sorted({metric for values in metrics for metric in values}, key=order))
    rows += _rows(facts, ("epoch_s", "images_per_s", "workers", "device"))
    return [(key, values) for key, values in rows if any(value is not None for value in values)]


def letter(i: int) -> str:
    return chr(ord("A") + i) if i < 26 else str(i + 1)


def _result(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if key == "epoch_s":
        return formatting.time(value)
    if value is not None and key == "images_per_s":
        return f"{value:,.0f}"
    return formatting.number(value)

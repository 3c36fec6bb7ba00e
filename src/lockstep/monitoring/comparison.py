"""`lockstep compare`: the settings in which runs differ, and what came of them, side by side."""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from rich.text import Text

from lockstep.monitoring import cells
from lockstep.runs.discovery import look_at, read_tests
from lockstep.runs.files import read_text, to_json
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import shown
from lockstep.system.redaction import redacted
from lockstep.system.terminal import duration, printable, terminal
from lockstep.system.trees import from_yaml, leaves

WIDEST = 24  # letters of a value that are shown beside others on a terminal
MOST_KEYS = 10_000
OTHERWISE = ("resume", "notify")  # settings that change nothing a run computes
Row = tuple[str, list[Any]]


def show(folders: Sequence[RunFolder], *, is_json: bool) -> int:
    """Print how runs differ. Returns the exit code."""
    settings, results = differences(folders), outcomes(folders)
    paths = [shown(folder.path) for folder in folders]
    if is_json:
        print(to_json({"runs": paths, "settings": dict(settings), "results": dict(results)}))
    elif sys.stdout.isatty():
        _show(paths, settings, results)
    else:
        for title, read, rows in (("settings", lambda key: _typed, settings), ("results", _read, results)):
            print("\t".join([title, *map(printable, paths)]))
            for key, values in rows:
                print("\t".join([printable(key), *map(read(key), values)]))
    return 0


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
        settings: dict[str, Any] = {}
        for key, value in leaves({key: value for key, value in tree.items() if key not in OTHERWISE}, ""):
            if len(settings) >= MOST_KEYS:
                raise ValueError("too many keys")
            # a date, which YAML knows, as text
            settings[key] = json.loads(json.dumps(redacted(value, key), default=str))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        what = " ".join(str(error).split())[:200] if isinstance(error, ValueError) else type(error).__name__
        raise ValueError(f"{shown(path)} cannot be read: {what}.") from error
    return settings


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


# -- what is seen ------------------------------------------------------------------------------------------------------


def _show(paths: Sequence[str], settings: Sequence[Row], results: Sequence[Row]) -> None:
    out = terminal()
    for i, path in enumerate(paths):
        out.print(Text.assemble((f"{_letter(i)}  ", "bold"), printable(path)), soft_wrap=True)
    if not settings:
        out.print("\nAll settings are the same.")
    blocks = [("settings", _typed, settings)] if settings else []
    for title, read, rows in [*blocks, ("results", None, results)]:
        texts = [(printable(key), [cells.cut((read or _read(key))(value), WIDEST) for value in values])
                 for key, values in rows]  # fmt: skip
        for part in _parts(texts, len(paths), out.width):
            out.print()
            out.print(_block(title, texts, part, is_right=read is None), soft_wrap=True)


def _parts(texts: Sequence[tuple[str, Sequence[str]]], count: int, width: int) -> Iterator[range]:
    """Runs that fit beside each other, at least one."""
    left = width - max(len(key) for key, _ in texts)
    start, used = 0, 0
    for i in range(count):
        wide = 2 + max(cells.cell_len(values[i]) for _, values in texts)
        if i > start and used + wide > left:
            yield range(start, i)
            start, used = i, 0
        used += wide
    yield range(start, count)


def _block(title: str, texts: Sequence[tuple[str, Sequence[str]]], part: range, *, is_right: bool) -> Text:
    lines = [[Text(title, style="bold"), *(Text(_letter(i), style="bold") for i in part)]]
    lines += [[Text(key, style="dim"), *(Text(values[i]) for i in part)] for key, values in texts]
    widths = [max(line[i].cell_len for line in lines) for i in range(len(lines[0]))]
    return cells.aligned(lines, widths, [False] + [is_right] * len(part))


def _letter(i: int) -> str:
    return chr(ord("A") + i) if i < 26 else str(i + 1)


def _typed(value: Any) -> str:
    """A setting as a person types it in an override."""
    return printable(value if isinstance(value, str) else json.dumps(value, separators=(",", ":")))


def _read(key: str) -> Any:
    """A result of this name as text for people."""
    if key == "epoch_s":
        return lambda value: duration(value) if value is not None else cells.NONE
    if key == "images_per_s":
        return lambda value: f"{value:,.0f}" if value is not None else cells.NONE
    return lambda value: printable(value) if isinstance(value, str) else cells.number(value)

"""`lockstep runs`: lists all runs below a folder, one per line."""

import contextlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lockstep.monitoring import formatting
from lockstep.runs import naming
from lockstep.runs.discovery import Listed, RunWatcher, all_runs, differing_overrides, root_of
from lockstep.runs.files import print_json
from lockstep.runs.folder import LIVE_STATES
from lockstep.system import terminal
from lockstep.system.terminal import new_table, print_line, print_table, printable
from lockstep.system.text import plural

COLUMNS = ("state", "run", "best", "settings", "epoch", "s/epoch", "started")


def show_runs(folder: str, *, sort: str, is_json: bool) -> int:
    """Print the runs, and return the exit code.

    Raises ValueError for a `sort` that no run has.
    """
    root = root_of(folder)
    unsorted_runs = all_runs(RunWatcher(root, scan_every_s=0.0))
    _check_column(unsorted_runs, sort.removeprefix("-"))
    runs = sort_runs(unsorted_runs, sort)
    if is_json:
        print_json(
            [
                formatting.plain_facts(run.facts, run.discovered.folder.path.resolve())
                for run in runs
            ]
        )
    elif not runs:
        print(
            f"No runs below {printable(str(root))}: start one with {naming.training_command()}, "
            "or name another folder.",
            file=sys.stderr,
        )
    else:
        out = terminal.terminal()
        if out.is_terminal:
            print_line(out, _head(root, runs), "bold")
        print_table(table(runs, out), out)
    return 0


def _check_column(runs: Sequence[Listed], key: str) -> None:
    if runs and key not in COLUMNS and all(run.value(key) is None for run in runs):
        metrics = {metric for run in runs for metric in run.facts["metrics"]}
        raise ValueError(
            f"--sort {key} is not in any run: choose from "
            f"{', '.join([*COLUMNS, *sorted(metrics)])}, or a typed setting."
        )


def sort_runs(runs: Sequence[Listed], sort: str) -> list[Listed]:
    """Sort runs by a column, in ascending order, or in descending order with a minus.

    Runs without a value come last.
    """
    column = sort.removeprefix("-")
    overrides = differing_overrides([run.facts for run in runs])
    is_text = column == "settings"
    run_values = [
        (overrides[run.discovered.id] or None if is_text else run.value(column), run)
        for run in runs
    ]
    run_values.sort(key=lambda pair: _order(pair[0]), reverse=column != sort)
    run_values.sort(key=lambda pair: pair[0] is None)
    return [run for _, run in run_values]


def _order(value: Any) -> tuple[bool, float, str]:
    """Return the key by which values are compared, with numbers first."""
    with contextlib.suppress(TypeError, ValueError):
        if math.isfinite(number := float(value)):
            return False, number, ""
    return True, 0.0, str(value)


def table(runs: Sequence[Listed], out: Console) -> Table:
    overrides = differing_overrides([run.facts for run in runs])
    rows = []
    for run in runs:
        facts, name = run.facts, run.discovered.name
        if name == ".":
            name = run.discovered.folder.path.resolve().name
        settings = overrides[run.discovered.id] or formatting.NONE
        epoch_time = formatting.time(facts.get("epoch_s"))
        rows.append(
            (
                formatting.state(facts["state"]),
                name,
                formatting.best(facts),
                settings,
                formatting.epochs(facts),
                epoch_time,
                formatting.moment(run.since),
            )
        )
    return new_table(COLUMNS, rows, out, right=("best", "epoch", "s/epoch"), wraps=("settings",))


def _head(root: Path, runs: Sequence[Listed]) -> str:
    num_live = sum(run.facts["state"] in LIVE_STATES for run in runs)
    title = f"{plural(len(runs), 'run')} below {printable(str(root))}"
    return f"{title}, {num_live} live" if num_live else title

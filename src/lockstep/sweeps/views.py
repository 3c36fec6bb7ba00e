"""The output of a sweep: a line for each event, and a table at the end."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.table import Table as RichTable

from lockstep.monitoring import formatting
from lockstep.runs.files import print_json
from lockstep.runs.naming import display_path, quote_path
from lockstep.sweeps.pool import LOG
from lockstep.system.terminal import duration, new_table, print_line, print_table, terminal
from lockstep.trials.ledger import Ledger, Trial
from lockstep.trials.results import Row
from lockstep.trials.table import Table, description, present_table, table_facts, text

MAX_ROWS = 30  # maximum number of rows of the table at the end, while the files have all rows


class View:
    """The output while `total` trials run.

    A silent view prints only the errors of failed trials.
    """

    def __init__(self, table: Callable[..., Table], total: int, *, is_silent: bool) -> None:
        self._table = table
        self._total = total
        self._is_silent = is_silent
        self._out = terminal()
        self._since: dict[int, float] = {}
        self._rows: dict[int, Row] = {}  # rows of trials that are not running

    def report_start(self, trial: Trial) -> None:
        self._since[trial.number] = time.monotonic()
        position = (
            f"{trial.number + 1} of {self._total}"
            if trial.number < self._total
            else str(trial.number)
        )
        verb = "runs as" if trial.device.startswith("job ") else "starts on"
        self._print_line(
            f"Trial {trial.number} ({position}) {verb} {trial.device}: {self._describe(trial)}"
        )

    def report_end(self, trial: Trial, state: str) -> None:
        if not self._is_silent:
            self._rows.pop(trial.number, None)
            sweep_table = self._table({}, cache=self._rows)
            row = next(row for row in sweep_table.rows if row.trial is trial)
            value = (
                f", {sweep_table.objective.name} {text(row.value)}" if row.value is not None else ""
            )
            elapsed = duration(time.monotonic() - self._since[trial.number])
            self._print_line(
                f"Trial {trial.number} {state} after {elapsed}{value}: {self._describe(trial)}",
                formatting.STYLES.get(state, "red"),
            )
        if state == "failed":
            out = terminal(is_error=True)
            folder, log = trial.folder, trial.folder.path / LOG
            log_file = log if log.exists() else Path(folder.read_job().get("log", log))
            print_line(
                out,
                f"Trial {trial.number} failed: {folder.failure_cause() or 'no error was recorded'}",
                "red",
            )
            print_line(
                out, f"  details: {display_path(folder.failure)}, {display_path(log_file)}", "red"
            )

    def report_stop(self, reason: str) -> None:
        self._print_line(f"Stopping all trials, each with a checkpoint: {reason}", "yellow")

    def _describe(self, trial: Trial) -> str:
        return description(trial, [row.trial for row in self._table({}, cache=self._rows).rows])

    def _print_line(self, line: str, style: str | Style = "") -> None:
        if not self._is_silent:
            print_line(self._out, line, style)


def show_table(sweep_table: Table, folder: Path, *, has_files: bool = True) -> None:
    """Print the table of the sweep in a folder, and the names of its files if it has them."""
    out = terminal()
    if settings := sweep_table.setting_texts:
        columns, lines = list(settings[0]), [list(line.values()) for line in settings[:MAX_ROWS]]
        right_columns = columns[columns.index("n") + 1 :]
        _print(
            new_table(_header(columns, sweep_table), lines, out, right=right_columns),
            len(settings),
            out,
        )
        out.print()
    _print(_trials(sweep_table, out), len(sweep_table.rows), out)
    for note in sweep_table.notes:
        print_line(out, note, "red" if note.startswith("Trial ") else "")
    if sum(group.n > 1 for group in sweep_table.groups) > 1:
        print_line(out, f"More than chance? lockstep compare {quote_path(folder)}")
    if has_files:
        print_line(out, f"Full table: {display_path(folder)}/table.csv, table.json")


def _print(rich_table: RichTable, num_rows: int, out: Console) -> None:
    print_table(rich_table, out)
    if num_rows > MAX_ROWS:
        out.print(f"... and {num_rows - MAX_ROWS} more", style="dim")


def show_sweep(path: Path, *, is_json: bool) -> int:
    """Print the present table of a sweep, and return the exit code.

    Raises ValueError before its first trial.
    """
    ledger = Ledger.open(path)
    if is_json:
        print_json(table_facts(ledger, present_table(ledger)))
    else:
        show_table(present_table(ledger), path, has_files=False)
    return 0


def _trials(sweep_table: Table, out: Console) -> RichTable:
    objective, keys, tests = sweep_table.objective.name, sweep_table.keys, sweep_table.tests
    order = ("trial", "state", objective, *keys, *tests[:1], "epoch", "time", *tests, "device")
    columns, rows = list(dict.fromkeys(order)), []
    for line in sweep_table.lines[:MAX_ROWS]:
        cells: dict[str, Any] = {column: text(value) for column, value in line.items()}
        cells["state"] = formatting.state(line["state"])
        cells["time"] = formatting.time(line["training_s"])
        rows.append([cells[column] for column in columns])
    right_columns = ("trial", objective, *tests, "epoch", "time")
    return new_table(_header(columns, sweep_table), rows, out, right=right_columns)


def _header(columns: Sequence[str], sweep_table: Table) -> Sequence[str]:
    """Return the names of columns.

    Settings are named without their sections if no two names become equal.
    """
    short_names = [
        column.rpartition(".")[2] if column in sweep_table.keys else column for column in columns
    ]
    return short_names if len(set(short_names)) == len(short_names) else columns

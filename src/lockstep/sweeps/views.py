"""What a person sees of a sweep: a live table on a terminal, a line for each event in a log, a table at the end."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Group
from rich.live import Live
from rich.text import Text

from lockstep.monitoring.cells import aligned, cut
from lockstep.runs.naming import shown as typed
from lockstep.sweeps.ledger import Trial
from lockstep.sweeps.pool import LOG
from lockstep.sweeps.table import Table, text, time_of, told
from lockstep.system.terminal import Terminal, duration, printable, say, terminal

MOST_ROWS = 30  # at the end: the files have them all
MOST_LETTERS = 24  # of a setting, on a terminal
STYLES = {"failed": "red", "stopped": "yellow", "interrupted": "yellow", "pruned": "dim", "queued": "dim"}


class View:
    """Follows the trials; `total` is how many there are to be in all, `table` what is known of them now.

    A silent one prints why trials fail and nothing else.
    """

    def __init__(self, table: Callable[[dict[int, str]], Table], total: int, *, is_silent: bool) -> None:
        self._table = table
        self._total = total
        self._is_silent = is_silent
        self._out = terminal()
        self._is_drawn = self._out.is_terminal and not is_silent
        self._screen = Live(console=self._out, auto_refresh=False, transient=True)
        self.live = self._screen if self._is_drawn else nullcontext()  # held while trials run
        self._started = time.monotonic()
        self._since: dict[int, float] = {}

    def started(self, trial: Trial) -> None:
        """Say on which devices a trial begins."""
        self._since[trial.number] = time.monotonic()
        if not self._is_drawn:
            which = f"{trial.number + 1} of {self._total}" if trial.number < self._total else str(trial.number)
            self._say(f"Trial {trial.number} ({which}) begins on {trial.device}: {self._told(trial)}")

    def ended(self, trial: Trial, state: str) -> None:
        """Say how a trial ended; of a failure, why."""
        if not self._is_silent:
            sweep_table = self._table({})
            row = next(row for row in sweep_table.rows if row.trial is trial)
            value = f", {sweep_table.objectives[0].name} {text(row.values[0])}" if row.values[0] is not None else ""
            used = duration(time.monotonic() - self._since[trial.number])
            self._say(f"Trial {trial.number} {state} after {used}{value}: {self._told(trial)}", STYLES.get(state, ""))
        if state == "failed":
            out = self._out if self._is_drawn else terminal(is_error=True)  # only its own console prints above a table
            say(out, Text(f"Trial {trial.number} failed: ").append(_failure(trial)))

    def stopping(self, reason: str) -> None:
        """Print why all trials are stopped."""
        self._say(f"Stopping all trials, each with a checkpoint: {reason}", "yellow")

    def refresh(self, running: Sequence[Trial]) -> None:
        """Draw the trials that run, and how many are behind and before them."""
        if not self._is_drawn:
            return
        states = {trial.number: trial.state for trial in running}
        sweep_table = self._table(states)
        rows = tuple(row for row in sweep_table.rows if row.trial.number in states)
        live = replace(sweep_table, rows=rows)
        lines = _lines(live, live.texts | {"left": [time_of(row.facts.get("remaining_s")) for row in rows]}, self._out)
        counts = Counter("running" if row.trial.number in states else row.state for row in sweep_table.rows)
        counts["queued"] += max(self._total - len(sweep_table.rows), 0)
        names = ("running", "queued", "finished", "pruned", "failed", "stopped", "interrupted")
        known = ", ".join(f"{counts[name]} {name}" for name in names if counts[name])
        if best := sweep_table.best:
            name = sweep_table.objectives[0].name
            known += f"; best so far: trial {best.trial.number}, {name} {text(best.values[0])}"
        title = Text(f"Sweep, {duration(time.monotonic() - self._started)}: {known}", style="bold")
        self._screen.update(Group(title, lines), refresh=True)

    def _told(self, trial: Trial) -> str:
        return told(trial, [row.trial for row in self._table({}).rows])

    def _say(self, text: str, style: str = "") -> None:
        if not self._is_silent:
            say(self._out, Text(printable(text), style=style))


def show(sweep_table: Table, where: str) -> None:
    """Print the table at the end: the best first. `where` has it as files."""
    out = terminal()
    first = replace(sweep_table, rows=sweep_table.rows[:MOST_ROWS])
    out.print(_lines(first, first.texts, out), soft_wrap=True)
    if len(sweep_table.rows) > MOST_ROWS:
        out.print(f"... and {len(sweep_table.rows) - MOST_ROWS} more", style="dim")
    for note in sweep_table.notes:
        say(out, Text(printable(note), style=STYLES["failed"] if note.startswith("Trial ") else ""))
    say(out, Text(f"In full: {where}/table.md, table.csv, table.json"))


def _lines(sweep_table: Table, columns: dict[str, list[str]], out: Terminal) -> Text:
    """Heads and a line for each row; of a terminal that is too narrow, as many columns as fit."""
    keys = sweep_table.keys
    if out.is_terminal:
        columns |= {key: [cut(value, MOST_LETTERS) for value in columns[key]] for key in keys}
    short = {key: key.rpartition(".")[2] for key in keys}
    heads = {name: name for name in columns} | (short if len(set(short.values())) == len(keys) else {})
    wide = {name: max(map(cell_len, [heads[name], *values])) for name, values in columns.items()}
    tests = sweep_table.tests
    for name in ("device", *tests[:0:-1], "time", "epoch", *tests[:1], "left", *reversed(keys)):
        if out.is_terminal and sum(wide.values()) + 2 * (len(wide) - 1) > out.width:
            wide.pop(name, None)
    lines = [[Text(heads[name], style="bold") for name in wide]]
    for number, row in enumerate(sweep_table.rows):
        lines.append([Text(columns[name][number], style=STYLES.get(row.state, "")) for name in wide])
    is_left = {*keys, "state", "device"}
    return aligned(lines, list(wide.values()), [name not in is_left for name in wide])


def _failure(trial: Trial) -> Text:
    """The end of what is known of a failure, and where the rest is."""
    try:
        text = trial.folder.failure.read_text(errors="replace").strip()
    except OSError:
        text = "no word of it"
    last = printable(text.splitlines()[-1]) if text else ""
    where = typed(trial.folder.path)
    rest = f"all of it: {where}/{trial.folder.failure.name}, {where}/{LOG}"
    return Text(f"{last}\n  {rest}", style="red")

"""What a person sees of a sweep: a live table on a terminal, a line for each event in a log, a table at the end."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.live import Live
from rich.table import Table as Lines
from rich.text import Text

from lockstep.run_folder import shown as typed
from lockstep.sweeps.ledger import Trial
from lockstep.sweeps.pool import LOG
from lockstep.sweeps.table import Row, Table, deviating, front_told, setting, shown, told
from lockstep.terminal import duration, printable, terminal

MOST_ROWS = 30  # at the end: the files have them all
STYLES = {"failed": "red", "stopped": "yellow", "interrupted": "yellow", "pruned": "dim", "queued": "dim"}


class Silent:
    """Says nothing but what went wrong."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left to do."""

    def started(self, trial: Trial) -> None:
        """Nothing."""

    def ended(self, trial: Trial, state: str) -> None:
        """Tell of a failure, at once."""
        if state == "failed":
            terminal(is_error=True).print(
                Text(f"Trial {trial.number} failed: ").append(_failure(trial)), soft_wrap=True
            )

    def said(self, text: str) -> None:
        """Pass over what is no failure."""

    def stopping(self, reason: str) -> None:
        """Nothing."""

    def refresh(self, running: Sequence[Trial]) -> None:
        """Nothing."""


class Shown(Silent):
    """Follows the trials; `total` is how many there are to be in all, `table` what is known of them now."""

    def __init__(self, table: Callable[[dict[int, str]], Table], total: int) -> None:
        self._table = table
        self._total = total
        self._out = terminal()
        self._live = Live(console=self._out, auto_refresh=False, transient=True) if self._out.is_terminal else None
        self._started = time.monotonic()
        self._since: dict[int, float] = {}

    def __enter__(self) -> "Shown":
        """Take the lower part of the terminal."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back."""
        if self._live is not None:
            self._live.stop()

    def started(self, trial: Trial) -> None:
        """Say on which devices a trial begins."""
        self._since[trial.number] = time.monotonic()
        if self._live is None:
            place = f"{trial.number + 1} of {self._total}" if trial.number < self._total else str(trial.number)
            self._say(f"Trial {trial.number} ({place}) begins on {trial.device}: {self._told(trial)}")

    def ended(self, trial: Trial, state: str) -> None:
        """Say how a trial ended; of a failure, why."""
        row = next(row for row in self._table({}).rows if row.trial is trial)
        value = f", {self._table({}).objectives[0].name} {shown(row.values[0])}" if row.values[0] is not None else ""
        used = duration(time.monotonic() - self._since[trial.number])
        self._say(f"Trial {trial.number} {state} after {used}{value}: {self._told(trial)}", STYLES.get(state, ""))
        if self._live is None:
            super().ended(trial, state)
        elif state == "failed":  # above the table, which only its own console knows of
            self._out.print(Text("  ").append(_failure(trial)), soft_wrap=True)

    def said(self, text: str) -> None:
        """Show a line."""
        self._say(text)

    def stopping(self, reason: str) -> None:
        """Say why."""
        self._say(f"Stopping all trials, each with a checkpoint: {reason}", "yellow")

    def refresh(self, running: Sequence[Trial]) -> None:
        """Draw the trials that run, and how many are behind and before them."""
        if self._live is None:
            return
        states = {trial.number: trial.state for trial in running}
        found = self._table(states)
        lines = _lines(found, [row for row in found.rows if row.trial.number in states], is_live=True)
        counts: dict[str, int] = {}
        for row in found.rows:
            state = "running" if row.trial.number in states else row.state
            counts[state] = counts.get(state, 0) + 1
        counts["queued"] = max(self._total - len(found.rows), 0) + counts.get("queued", 0)
        names = ("running", "queued", "finished", "pruned", "failed", "stopped", "interrupted")
        text = ", ".join(f"{counts[name]} {name}" for name in names if counts.get(name))
        if not self._since:
            text += "; importing torch, once for all"
        best = found.best
        if best is not None:
            text += f"; best so far: trial {best.trial.number}, {found.objectives[0].name} {shown(best.values[0])}"
        lines.title = f"Sweep, {duration(time.monotonic() - self._started)}: {text}"
        self._live.update(lines, refresh=True)

    def _told(self, trial: Trial) -> str:
        return told(trial, [row.trial for row in self._table({}).rows])

    def _say(self, text: str, style: str = "") -> None:
        self._out.print(Text(printable(text), style=style), soft_wrap=True)


def show(found: Table, where: str | None) -> None:
    """Print the table at the end: the best first. `where` has it as files."""
    out = terminal()
    out.print(_lines(found, found.rows[:MOST_ROWS], is_live=False))
    if len(found.rows) > MOST_ROWS:
        out.print(f"... and {len(found.rows) - MOST_ROWS} more", style="dim")
    if len(found.objectives) > 1:
        out.print(front_told(found))
    for group in found.groups:
        settings = " ".join(f"{key}={setting(value)}" for key, value in group.settings.items()) or "all"
        out.print(Text(f"{settings}: {deviating(group)} over {group.n} seeds"), soft_wrap=True)
    for text in found.failures:
        out.print(Text(printable(text), style=STYLES["failed"]), soft_wrap=True)
    if where is not None:
        out.print(Text(f"In full: {where}/table.md, table.csv, table.json"), soft_wrap=True)


def _lines(found: Table, rows: Sequence[Row], *, is_live: bool) -> Lines:
    lines = Lines(box=None, pad_edge=False, title_justify="left", header_style="bold", title_style="bold")
    lines.add_column("trial", justify="right")
    for key in found.keys:
        lines.add_column(key.rpartition(".")[2] if len(found.keys) > 3 else key, overflow="fold")
    lines.add_column("state")
    if is_live:
        lines.add_column("device")
    lines.add_column("epoch", justify="right")
    for objective in found.objectives:
        lines.add_column(objective.name, justify="right")
    for head in ("left",) if is_live else ("test acc", "time"):
        lines.add_column(head, justify="right")
    for row in rows:
        cells = [str(row.trial.number), *(printable(setting(row.settings.get(key, "-"))) for key in found.keys)]
        cells += [row.state, row.trial.device] if is_live else [row.state]
        cells += [row.epoch, *map(shown, row.values)]
        last = [row.left_s] if is_live else [row.training_s]
        cells += [] if is_live else [shown(row.test_accuracy)]
        cells += [duration(seconds) if seconds is not None else "-" for seconds in last]
        lines.add_row(*(Text(cell, style=STYLES.get(row.state, "")) for cell in cells))
    return lines


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

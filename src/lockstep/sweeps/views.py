"""What a person sees of a sweep: a live table on a terminal, a line for each event in a log, a table at the end."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.cells import cell_len
from rich.console import Group
from rich.live import Live
from rich.text import Text

from lockstep.monitoring.cells import aligned, cut
from lockstep.runs.naming import shown as typed
from lockstep.sweeps.ledger import Trial
from lockstep.sweeps.pool import LOG
from lockstep.sweeps.table import Row, Table, deviating, front_told, setting, shown, told
from lockstep.system.terminal import duration, printable, say, terminal

MOST_ROWS = 30  # at the end: the files have them all
# what a narrow terminal does without, the first one first
DROPPED = ("device", "time", "test", "epoch", "left")
LEAST = 4  # letters of a setting that are worth a column
STYLES = {"failed": "red", "stopped": "yellow", "interrupted": "yellow", "pruned": "dim", "queued": "dim"}


class Silent:
    """The view of a silent sweep: it prints failures and nothing else."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let an error through: this view has nothing to give back."""

    def started(self, trial: Trial) -> None:
        """Print nothing when a trial begins."""

    def ended(self, trial: Trial, state: str) -> None:
        """Print why a trial failed as soon as it has; other ends print nothing."""
        if state == "failed":
            say(terminal(is_error=True), Text(f"Trial {trial.number} failed: ").append(_failure(trial)))

    def stopping(self, reason: str) -> None:
        """Print nothing when the sweep ends early."""

    def refresh(self, running: Sequence[Trial]) -> None:
        """Draw no table of the trials that run."""


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
        """Start to draw in the lower part of the terminal."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear what was drawn in the lower part of the terminal."""
        if self._live is not None:
            self._live.stop()

    def started(self, trial: Trial) -> None:
        """Say on which devices a trial begins."""
        self._since[trial.number] = time.monotonic()
        if self._live is None:
            which = f"{trial.number + 1} of {self._total}" if trial.number < self._total else str(trial.number)
            self._say(f"Trial {trial.number} ({which}) begins on {trial.device}: {self._told(trial)}")

    def ended(self, trial: Trial, state: str) -> None:
        """Say how a trial ended; of a failure, why."""
        row = next(row for row in self._table({}).rows if row.trial is trial)
        value = f", {self._table({}).objectives[0].name} {shown(row.values[0])}" if row.values[0] is not None else ""
        used = duration(time.monotonic() - self._since[trial.number])
        self._say(f"Trial {trial.number} {state} after {used}{value}: {self._told(trial)}", STYLES.get(state, ""))
        if self._live is None:
            super().ended(trial, state)
        elif state == "failed":  # above the table, which only its own console knows of
            say(self._out, Text("  ").append(_failure(trial)))

    def stopping(self, reason: str) -> None:
        """Print why all trials are stopped."""
        self._say(f"Stopping all trials, each with a checkpoint: {reason}", "yellow")

    def refresh(self, running: Sequence[Trial]) -> None:
        """Draw the trials that run, and how many are behind and before them."""
        if self._live is None:
            return
        states = {trial.number: trial.state for trial in running}
        sweep_table = self._table(states)
        rows = [row for row in sweep_table.rows if row.trial.number in states]
        lines = _lines(sweep_table, rows, self._out.width, is_live=True)
        counts: dict[str, int] = {}
        for row in sweep_table.rows:
            state = "running" if row.trial.number in states else row.state
            counts[state] = counts.get(state, 0) + 1
        counts["queued"] = max(self._total - len(sweep_table.rows), 0) + counts.get("queued", 0)
        names = ("running", "queued", "finished", "pruned", "failed", "stopped", "interrupted")
        text = ", ".join(f"{counts[name]} {name}" for name in names if counts.get(name))
        best = sweep_table.best
        if best is not None:
            text += (
                f"; best so far: trial {best.trial.number}, {sweep_table.objectives[0].name} {shown(best.values[0])}"
            )
        title = Text(f"Sweep, {duration(time.monotonic() - self._started)}: {text}", style="bold")
        self._live.update(Group(title, lines), refresh=True)

    def _told(self, trial: Trial) -> str:
        return told(trial, [row.trial for row in self._table({}).rows])

    def _say(self, text: str, style: str = "") -> None:
        say(self._out, Text(printable(text), style=style))


def show(sweep_table: Table, where: str | None) -> None:
    """Print the table at the end: the best first. `where` has it as files."""
    out = terminal()
    width = out.width if out.is_terminal else None
    out.print(_lines(sweep_table, sweep_table.rows[:MOST_ROWS], width, is_live=False), soft_wrap=True)
    if len(sweep_table.rows) > MOST_ROWS:
        out.print(f"... and {len(sweep_table.rows) - MOST_ROWS} more", style="dim")
    if len(sweep_table.objectives) > 1:
        out.print(front_told(sweep_table))
    for group in sweep_table.groups:
        settings = " ".join(f"{key}={setting(value)}" for key, value in group.settings.items()) or "all"
        say(out, Text(f"{settings}: {deviating(group)} over {group.n} seeds"))
    for text in sweep_table.failures:
        say(out, Text(printable(text), style=STYLES["failed"]))
    if where is not None:
        say(out, Text(f"In full: {where}/table.md, table.csv, table.json"))


def _lines(sweep_table: Table, rows: Sequence[Row], width: int | None, *, is_live: bool) -> Text:
    """Heads and a line for each row, as many columns as fit into `width`; None: all of them, whole."""
    columns = _columns(sweep_table, rows, is_live=is_live)
    wide = {name: max(cell_len(name), *map(cell_len, texts), 1) for name, texts in columns.items()}
    heads = {name: name for name in columns}

    def is_too_wide() -> bool:
        return width is not None and sum(wide.values()) + 2 * (len(wide) - 1) > width

    if len(sweep_table.keys) > 3 or is_too_wide():
        heads |= {key: key.rpartition(".")[2] for key in sweep_table.keys}
        wide |= {key: max(map(cell_len, [heads[key], *columns[key]])) for key in sweep_table.keys}
    for name in DROPPED:
        if is_too_wide():
            wide.pop(_tested_head(sweep_table) if name == "test" else name, None)
    while is_too_wide() and max((wide[key] for key in sweep_table.keys), default=0) > LEAST:
        wide[max(sweep_table.keys, key=lambda key: wide[key])] -= 1
    for key in reversed(sweep_table.keys):
        if is_too_wide():
            del wide[key]
    lines = [[Text(cut(heads[name], wide[name]), style="bold") for name in wide]]
    for number, row in enumerate(rows):
        style = STYLES.get(row.state, "")
        lines.append([Text(cut(columns[name][number], wide[name]), style=style) for name in wide])
    is_left = {*sweep_table.keys, "state", "device"}
    return aligned(lines, list(wide.values()), [name not in is_left for name in wide])


def _tested_head(sweep_table: Table) -> str:
    """The head of what the test measured first, e.g. test acc."""
    return "".join(sweep_table.tests[:1]).replace("_", " ").replace("accuracy", "acc")


def _columns(sweep_table: Table, rows: Sequence[Row], *, is_live: bool) -> dict[str, list[str]]:
    """What every row says below each head."""

    def time_of(seconds: float | None) -> str:
        return duration(seconds) if seconds is not None else "-"

    columns = {"trial": [str(row.trial.number) for row in rows]}
    for key in sweep_table.keys:
        columns[key] = [printable(setting(row.settings.get(key, "-"))) for row in rows]
    columns["state"] = [row.state for row in rows]
    if is_live:
        columns["device"] = [row.trial.device for row in rows]
    columns["epoch"] = [row.epoch for row in rows]
    for number, objective in enumerate(sweep_table.objectives):
        columns[objective.name] = [shown(row.values[number]) for row in rows]
    if is_live:
        return columns | {"left": [time_of(row.left_s) for row in rows]}
    for name in sweep_table.tests[:1]:
        columns[_tested_head(sweep_table)] = [shown(row.tests.get(name)) for row in rows]
    return columns | {"time": [time_of(row.training_s) for row in rows]}


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

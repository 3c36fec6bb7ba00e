"""`lockstep runs`: all runs below a folder, a line each."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from lockstep.monitoring import cells
from lockstep.monitoring.selection import Listed, Selection
from lockstep.runs import naming
from lockstep.runs.discovery import Watched, differing_overrides
from lockstep.runs.files import to_json
from lockstep.runs.folder import LIVE_STATES
from lockstep.system import terminal
from lockstep.system.terminal import duration, new_table, print_table, printable, say
from lockstep.system.wording import plural

SEARCH_S = 10.0  # between two searches for new runs
COLUMNS = ("state", "run", "best", "overrides", "epoch", "s/epoch", "started")


def show(selection: Selection, *, sort: str, is_reversed: bool, is_json: bool) -> int:
    """Print the runs. Returns the exit code."""
    watched = Watched(selection.root, scan_every_s=SEARCH_S)
    runs = in_order(selection.listed(watched), sort, is_reversed=is_reversed)
    if is_json:
        print(to_json([_plain_facts(run) for run in runs]))
    elif not runs:
        print(_nothing(selection, num_found=len(watched.runs())), file=sys.stderr)
    else:
        out = terminal.terminal()
        if out.is_terminal:
            say(out, _head(selection, runs), "bold")
        print_table(table(runs, out), out)
    return 0


def watch(selection: Selection, *, sort: str, is_reversed: bool) -> int:
    """Show the runs on the terminal, refreshed every two seconds, until Ctrl-C. Returns the exit code."""
    watched = Watched(selection.root, scan_every_s=SEARCH_S)

    def drawn(out: Console) -> Group:
        runs = in_order(selection.listed(watched), sort, is_reversed=is_reversed)
        return _screen(selection, runs, out, f"  {time.strftime('%H:%M:%S')}, Ctrl-C ends")

    terminal.watch(drawn)
    return 0


def in_order(runs: Sequence[Listed], sort: str, *, is_reversed: bool) -> list[Listed]:
    """Sort runs by a column, ascending, or descending with a minus; runs without a value come last.

    Raises ValueError for an unknown column.
    """
    name, is_down = sort.removeprefix("-"), sort.startswith("-") != is_reversed
    if name not in COLUMNS:
        raise ValueError(f"--sort {sort} is not a column: choose from {', '.join(COLUMNS)}.")
    overrides = differing_overrides([run.facts for run in runs])
    valued = [(_value(run, name, overrides[run.discovered.id]), run) for run in runs]
    with_value = sorted((pair for pair in valued if pair[0] is not None), key=lambda pair: pair[0], reverse=is_down)
    return [run for _, run in with_value] + [run for value, run in valued if value is None]


def _value(run: Listed, column: str, overrides: str) -> Any:
    known = {"run": run.discovered.name, "overrides": overrides or None, "started": run.since or None}
    return known[column] if column in known else run.facts.get({"s/epoch": "epoch_s"}.get(column, column))


def table(runs: Sequence[Listed], out: Console, num_shown: int | None = None) -> Table:
    """Make a line per run. On a terminal, the line above names the metric of `best` if all runs share it."""
    monitor = _monitor(runs) if out.is_terminal else ""
    overrides = differing_overrides([run.facts for run in runs])
    rows = [
        [
            cells.state(run.facts["state"]),
            _name(run),
            cells.number(run.facts.get("best")) if monitor else cells.best(run.facts),
            overrides[run.discovered.id] or cells.NONE,
            cells.epochs(run.facts),
            duration(run.facts["epoch_s"]) if "epoch_s" in run.facts else cells.NONE,
            cells.moment(run.since),
        ]
        for run in runs[:num_shown]
    ]
    return new_table(COLUMNS, rows, out, right=("best", "epoch", "s/epoch"), wraps=("overrides",))


def _screen(selection: Selection, runs: Sequence[Listed], out: Console, note: str) -> Group:
    """Show as many runs as fit if each takes one line."""
    num_shown = max(1, out.height - 4)
    head = Text.assemble((_head(selection, runs), "bold"), (note, "dim"), no_wrap=True, overflow="crop")
    rest = f"and {len(runs) - num_shown:,} more" if len(runs) > num_shown else ""
    return Group(head, table(runs, out, num_shown), Text(rest, style="dim"))


def _head(selection: Selection, runs: Sequence[Listed]) -> str:
    live = sum(run.facts["state"] in LIVE_STATES for run in runs)
    text = f"{plural(len(runs), 'run')} below {printable(str(selection.root))}"
    text += f", {live} live" if live else ""
    monitor = _monitor(runs)
    return f"{text}, best: {monitor}" if monitor else text


def _monitor(runs: Sequence[Listed]) -> str:
    """Return the metric of the best values if all runs share it."""
    monitors = {run.facts.get("monitor", "") for run in runs if "best" in run.facts}
    return printable(monitors.pop()) if len(monitors) == 1 else ""


def _nothing(selection: Selection, *, num_found: int) -> str:
    where = printable(str(selection.root))
    if not num_found:
        return f"No runs below {where}: start one with {naming.training_command()}, or name another folder."
    return f"None of the {plural(num_found, 'run')} below {where} matches: remove --filter or --state."


def _plain_facts(run: Listed) -> dict[str, Any]:
    facts = {name: value for name, value in run.facts.items() if name != "id"}
    return facts | {"path": str(run.discovered.folder.path.resolve())}


def _name(run: Listed) -> str:
    return run.discovered.name if run.discovered.name != "." else run.discovered.folder.path.resolve().name

"""`lockstep runs`: all runs below a folder, a line each."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from lockstep.monitoring import cells
from lockstep.monitoring.selection import COLUMNS, Listed, Selection, all_runs, order
from lockstep.runs import naming
from lockstep.runs.discovery import Watched, differing_overrides
from lockstep.runs.files import print_json
from lockstep.runs.folder import LIVE_STATES
from lockstep.system import terminal
from lockstep.system.terminal import new_table, print_table, printable, say
from lockstep.system.wording import plural

SEARCH_S = 10.0  # between two searches for new runs


def show_runs(selection: Selection, columns: Sequence[str], *, sort: str, is_json: bool, is_watched: bool) -> int:
    """Print the runs, with these columns or the usual ones, or refresh them until Ctrl-C. Returns the exit code.

    Raises ValueError for keys that no run has.
    """
    watched = Watched(selection.root, scan_every_s=SEARCH_S)
    selection.check(all_runs(watched), *columns, sort.removeprefix("-"))

    def draw(out: Console) -> Group:
        runs = sort_runs(selection.matching_runs(watched), sort)
        return _screen(selection, runs, columns, out, f"  {time.strftime('%H:%M:%S')}, Ctrl-C ends")

    if is_watched:
        terminal.watch(draw)
        return 0
    runs = sort_runs(selection.matching_runs(watched), sort)
    if is_json:
        print_json([_plain_facts(run) | {key: run.value(key) for key in columns} for run in runs])
    elif not runs:
        print(_empty_text(selection, num_found=len(watched.runs())), file=sys.stderr)
    else:
        out = terminal.terminal()
        if out.is_terminal:
            say(out, _head(selection, runs), "bold")
        print_table(table(runs, columns, out), out)
    return 0


def sort_runs(runs: Sequence[Listed], sort: str) -> list[Listed]:
    """Sort runs by a column, ascending, or descending with a minus; runs without a value come last."""
    name = sort.removeprefix("-")
    overrides = differing_overrides([run.facts for run in runs])
    valued = [(overrides[run.discovered.id] or None if name == "settings" else run.value(name), run) for run in runs]
    with_value = [pair for pair in valued if pair[0] is not None]
    with_value.sort(key=lambda pair: order(pair[0]), reverse=name != sort)
    return [run for _, run in with_value] + [run for value, run in valued if value is None]


def table(runs: Sequence[Listed], columns: Sequence[str], out: Console, num_shown: int | None = None) -> Table:
    """Make a line per run. On a terminal, the line above names the metric of `best` if all runs share it."""
    keys = [*([] if "run" in columns else ["run"]), *columns] if columns else COLUMNS
    monitor = _monitor(runs) if out.is_terminal else ""
    overrides = differing_overrides([run.facts for run in runs])

    def cell(run: Listed, key: str) -> str | Text:
        if key == "state":
            return cells.state(run.facts["state"])
        usual = {
            "run": run.discovered.name if run.discovered.name != "." else run.discovered.folder.path.resolve().name,
            "best": cells.number(run.facts.get("best")) if monitor else cells.best(run.facts),
            "settings": overrides[run.discovered.id] or cells.NONE,
            "epoch": cells.epochs(run.facts),
            "s/epoch": cells.time(run.facts.get("epoch_s")),
            "started": cells.moment(run.since),
        }
        return usual[key] if key in usual else cells.text(run.value(key))

    rows = [[cell(run, key) for key in keys] for run in runs[:num_shown]]
    texts = {key for run in runs for key in keys if (found := run.value(key)) is not None and order(found)[0]}
    right = ("best", "epoch", "s/epoch", *({*keys} - texts))
    return new_table(keys, rows, out, right=right, wraps=("settings", "note"))


def _screen(selection: Selection, runs: Sequence[Listed], columns: Sequence[str], out: Console, note: str) -> Group:
    """Show as many runs as fit if each takes one line."""
    num_shown = max(1, out.height - 4)
    head = Text.assemble((_head(selection, runs), "bold"), (note, "dim"), no_wrap=True, overflow="crop")
    rest = f"and {len(runs) - num_shown:,} more" if len(runs) > num_shown else ""
    return Group(head, table(runs, columns, out, num_shown), Text(rest, style="dim"))


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


def _empty_text(selection: Selection, *, num_found: int) -> str:
    where = printable(str(selection.root))
    if not num_found:
        return f"No runs below {where}: start one with {naming.training_command()}, or name another folder."
    return f"None of the {plural(num_found, 'run')} below {where} matches: remove --filter or --state."


def _plain_facts(run: Listed) -> dict[str, Any]:
    facts = {name: value for name, value in run.facts.items() if name != "id"}
    return facts | {"path": str(run.discovered.folder.path.resolve())}

"""`lockstep runs`: all runs below a folder, a line each."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.live import Live
from rich.text import Text

from lockstep.monitoring import cells
from lockstep.monitoring.selection import Listed, Selection
from lockstep.runs import naming
from lockstep.runs.discovery import MOST, Watched, differing_overrides
from lockstep.runs.files import to_json
from lockstep.runs.folder import LIVE_STATES
from lockstep.system import output
from lockstep.system.signals import restored
from lockstep.system.terminal import duration, printable, terminal
from lockstep.system.wording import plural

EVERY_S = 2.0
SEARCH_S = 10.0  # how long a new run may go unseen while the table is watched
LEAST = 12  # letters of overrides that are worth a column


class Column(NamedTuple):
    """A fact of every run: what it is sorted by, where it has one, and how it reads."""

    is_right: bool
    value: Callable[[Listed, str], Any]
    text: Callable[[Listed, str], str]


# `settings` are the overrides in which the runs differ
COLUMNS = {
    "state": Column(False, lambda run, settings: run.facts["state"], lambda run, settings: run.facts["state"]),
    "run": Column(False, lambda run, settings: run.discovered.name, lambda run, settings: _name(run)),
    "overrides": Column(False, lambda run, settings: settings or None, lambda run, settings: settings or cells.NONE),
    "epoch": Column(True, lambda run, settings: run.facts.get("epoch"), lambda run, settings: cells.epochs(run.facts)),
    "best": Column(True, lambda run, settings: run.facts.get("best"), lambda run, settings: cells.best(run.facts)),
    "s/epoch": Column(True, lambda run, settings: run.facts.get("epoch_s"), lambda run, settings: _epoch_s(run.facts)),
    "started": Column(True, lambda run, settings: run.since or None, lambda run, settings: cells.moment(run.since)),
}
# what a narrow terminal does without, the first one first
DROPPED = ("started", "s/epoch", "overrides", "best", "epoch")


def show(selection: Selection, *, sort: str, is_reversed: bool, is_json: bool) -> int:
    """Print the runs. Returns the exit code."""
    check_order(sort)
    watched = Watched(selection.root, scan_every_s=SEARCH_S)
    runs = in_order(selection.listed(watched), sort, is_reversed=is_reversed)
    if len(watched.runs()) >= MOST:
        print(f"lockstep: {selection.root} has too many runs: {MOST:,} were looked at.", file=sys.stderr)
    if is_json:
        print(to_json([_plain_facts(run) for run in runs]))
    elif not runs:
        print(_nothing(selection, num_found=len(watched.runs())), file=sys.stderr)
    elif sys.stdout.isatty():
        out = terminal()
        out.print(_head(selection, runs))
        out.print(table(runs, out.width), soft_wrap=True)
    else:
        print("\n".join("\t".join(line) for line in plain(runs)))
    return 0


def watch(selection: Selection, *, sort: str, is_reversed: bool) -> int:
    """Show the runs on the terminal, anew every two seconds, until Ctrl-C. Returns the exit code."""
    check_order(sort)
    out = terminal()
    if not sys.stdout.isatty() or out.is_dumb_terminal:
        raise ValueError("--watch needs a terminal: leave it out to print the runs once.")
    watched = Watched(selection.root, scan_every_s=SEARCH_S)
    runs: list[Listed] = []
    with restored(), contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, _leave)  # gives the terminal back, as Ctrl-C does
        with Live(console=out, screen=True, auto_refresh=False) as live:
            while output.is_read():
                runs = in_order(selection.listed(watched), sort, is_reversed=is_reversed)
                live.update(_screen(selection, runs, out.width, out.height), refresh=True)
                time.sleep(EVERY_S)
    if runs:
        out.print(_head(selection, runs))
        out.print(_cropped(table(runs, out.width), out.height - 3), soft_wrap=True)
    return 0


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


# -- order -------------------------------------------------------------------------------------------------------------


def check_order(sort: str) -> None:
    """Raise ValueError for a column there is not."""
    if sort.removeprefix("-") not in COLUMNS:
        raise ValueError(f"--sort {sort}: there is no such column, choose from {', '.join(COLUMNS)}.")


def in_order(runs: Sequence[Listed], sort: str, *, is_reversed: bool) -> list[Listed]:
    """Sort runs by a column, the smallest first, with a minus the largest first; runs without a value come last."""
    column, is_down = COLUMNS[sort.removeprefix("-")], sort.startswith("-") != is_reversed
    settings = _settings(runs)
    valued = [(column.value(run, settings[run.discovered.id]), run) for run in runs]
    with_value = sorted((pair for pair in valued if pair[0] is not None), key=lambda pair: pair[0], reverse=is_down)
    return [run for _, run in with_value] + [run for value, run in valued if value is None]


def _settings(runs: Sequence[Listed]) -> dict[str, str]:
    differing = differing_overrides([run.facts for run in runs])
    return {key: printable(text) for key, text in differing.items()}


# -- what is seen ------------------------------------------------------------------------------------------------------


def plain(runs: Sequence[Listed]) -> list[list[str]]:
    """Heads and lines of everything, whole, for a file or a pipe."""
    settings = _settings(runs)
    return [
        list(COLUMNS),
        *([column.text(run, settings[run.discovered.id]) for column in COLUMNS.values()] for run in runs),
    ]


def table(runs: Sequence[Listed], width: int) -> Text:
    """Heads and lines in columns, as many of them as fit into `width`."""
    settings, now = _settings(runs), time.time()
    texts = {name: [column.text(run, settings[run.discovered.id]) for run in runs] for name, column in COLUMNS.items()}
    texts["started"] = [cells.short_moment(run.since, now) for run in runs]
    if _monitor(runs):  # the headline says it
        texts["best"] = [cells.number(run.facts.get("best")) for run in runs]
    shown = [name for name in COLUMNS if name in ("state", "run") or set(texts[name]) != {cells.NONE}]
    wide = {name: max(map(cells.cell_len, [name, *texts[name]])) for name in shown}

    def total() -> int:
        least = {name: min(wide[name], LEAST) if name == "overrides" else wide[name] for name in shown}
        return sum(least.values()) + 2 * (len(shown) - 1)

    for name in DROPPED:
        if total() > width and name in shown:
            shown.remove(name)
    flexible = "overrides" if "overrides" in shown else "run"
    rest = width - sum(wide[name] for name in shown if name != flexible) - 2 * (len(shown) - 1)
    wide[flexible] = max(1, min(wide[flexible], rest))
    lines = [[Text(cells.cut(name, wide[name]), style="bold") for name in shown]]
    for i, run in enumerate(runs):
        line = []
        for name in shown:
            text = cells.cut(texts[name][i], wide[name], keeps_end=name == "run")
            line.append(Text(text, style=cells.STYLES[run.facts["state"]] if name == "state" else ""))
        lines.append(line)
    return cells.aligned(lines, [wide[name] for name in shown], [COLUMNS[name].is_right for name in shown])


def _screen(selection: Selection, runs: Sequence[Listed], width: int, height: int) -> Text:
    head = _head(selection, runs).append(f"  {time.strftime('%H:%M:%S')}, Ctrl-C ends", style="dim")
    head.truncate(width, overflow="ellipsis")
    if not runs:
        return head
    return head.append("\n").append_text(_cropped(table(runs, width), height - 1))


def _cropped(text: Text, height: int) -> Text:
    """Cut a text to `height` lines, of which the last one says how many are left out."""
    lines = text.split("\n")
    if len(lines) <= height:
        return text
    kept = max(1, height - 1)
    return Text("\n").join([*lines[:kept], Text(f"and {len(lines) - kept:,} more", style="dim")])


def _head(selection: Selection, runs: Sequence[Listed]) -> Text:
    live = sum(run.facts["state"] in LIVE_STATES for run in runs)
    text = f"{plural(len(runs), 'run')} below {printable(str(selection.root))}"
    text += f", {live} at work" if live else ""
    monitor = _monitor(runs)
    return Text(f"{text}, best: {monitor}" if monitor else text, style="bold")


def _monitor(runs: Sequence[Listed]) -> str:
    """What the best values are of, where it is the same in all runs."""
    monitors = {run.facts.get("monitor", "") for run in runs if "best" in run.facts}
    return printable(monitors.pop()) if len(monitors) == 1 else ""


def _nothing(selection: Selection, *, num_found: int) -> str:
    where = printable(str(selection.root))
    if not num_found:
        return f"No runs below {where}: start one with {naming.training_command()}, or name another folder."
    return f"None of the {plural(num_found, 'run')} below {where} fits: leave out --filter or --state."


def _plain_facts(run: Listed) -> dict[str, Any]:
    facts = {name: value for name, value in run.facts.items() if name != "id"}
    return facts | {"path": str(run.discovered.folder.path.resolve())}


def _name(run: Listed) -> str:
    return printable(run.discovered.name if run.discovered.name != "." else run.discovered.folder.path.resolve().name)


def _epoch_s(facts: dict[str, Any]) -> str:
    return duration(facts["epoch_s"]) if "epoch_s" in facts else cells.NONE

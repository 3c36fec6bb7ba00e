"""The report of a benchmark from its results.json: a page as PDF, and its chart alone as PNG."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullFormatter

from lockstep.benchmark import results
from lockstep.benchmark.results import Record, seconds
from lockstep.callbacks.plots import BLUE, DARK, LINE, WIDTH, new_figure, style
from lockstep.runs.files import atomic_file
from lockstep.system.terminal import plain_text, printable
from lockstep.system.wording import plural

DPI = 160
COLUMNS = 105  # letters of a line
PAGE = (8.27, 11.69)  # inches of A4
MARGIN = (PAGE[0] - WIDTH) / 2
TITLE_HEIGHT, LINE_HEIGHT = 0.45, 0.158  # inches


def write(path: Path, benchmark: dict[str, Any]) -> None:
    """Write report.pdf into the folder `path`, and epoch_time.png if an environment has a time."""
    shown = timed_records(benchmark)
    with style():
        with atomic_file(path / "report.pdf") as file:
            page(benchmark).savefig(file, format="pdf", metadata={"CreationDate": None})
        if shown:
            chart = new_figure(height(shown))
            draw(chart.subplots(), shown, title(benchmark))
            with atomic_file(path / "epoch_time.png") as file:
                chart.savefig(file, format="png", dpi=DPI)


def page(benchmark: dict[str, Any]) -> Figure:
    """Draw the verdict, the table, the facts and the chart on a page of A4, or on a longer one if they need it."""
    records, shown = benchmark["environments"], timed_records(benchmark)
    lines = [f"{name:<14}{value}" for name, value in facts(benchmark)]
    notes = wrap_paragraphs(results.notes(records))
    table = plain_text(results.table(records), COLUMNS).plain
    parts = [wrap_paragraphs(benchmark["verdict"]), table, notes, wrap_paragraphs(lines, indent=14)]
    text = "\n\n".join(filter(None, parts))
    text_height = (text.count("\n") + 2) * LINE_HEIGHT
    page_height = max(PAGE[1], 2 * MARGIN + TITLE_HEIGHT + text_height + height(shown))
    left, top = MARGIN / PAGE[0], page_height - MARGIN
    bottom = top - TITLE_HEIGHT - text_height - height(shown)
    rect = (left, bottom / page_height, WIDTH / PAGE[0], height(shown) / page_height)
    figure = Figure(figsize=(PAGE[0], page_height), layout=ConstrainedLayoutEngine(rect=rect))
    figure.text(left, top / page_height, title(benchmark), va="top", size=14, weight="bold")
    top -= TITLE_HEIGHT
    figure.text(left, top / page_height, text, va="top", size=8, family="DejaVu Sans Mono", linespacing=1.4)
    if shown:
        draw(figure.subplots(), shown, "")
    return figure


def wrap_paragraphs(paragraphs: Sequence[str], indent: int = 0) -> str:
    return "\n".join(textwrap.fill(printable(text), COLUMNS, subsequent_indent=" " * indent) for text in paragraphs)


def timed_records(benchmark: dict[str, Any]) -> list[Record]:
    return [r for r in benchmark["environments"] if r.get("epoch_s")]


def title(benchmark: dict[str, Any]) -> str:
    precisions = dict.fromkeys(r["precision"] for r in benchmark["environments"] if r.get("precision"))
    what = f"{benchmark['experiment']['model']} on {benchmark['experiment']['data']}"
    return printable(", ".join(filter(None, [f"Benchmark: {what}", " and ".join(precisions)])))


def facts(benchmark: dict[str, Any]) -> list[tuple[str, str]]:
    """Command, date, machine, versions and budget of a benchmark, and its best network, as (name, value)."""
    machine, kept = benchmark["environment"], benchmark["kept"]
    packages, gpus = machine.get("packages", {}), machine.get("gpus", [])
    versions = [f"{name} {packages[name]}" for name in ("torch", "lightning", "lockstep") if name in packages]
    versions += [f"commit {machine['commit']}"] if machine.get("commit") else []
    of_machine = [
        ("CPU", f"{machine.get('cpu')}, {machine.get('cpu_cores')} cores"),
        ("GPUs", ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)) or "none"),
        ("versions", ", ".join([f"Python {machine.get('python')}", *versions])),
    ]
    rows = [
        ("command", benchmark["command"]),
        ("date", benchmark["date"]),
        *([("machines", f"{benchmark['nodes']}, CPU and GPUs of the first")] if benchmark["nodes"] else []),
        *(of_machine if machine else []),  # unknown where every environment failed
        ("budget", f"{benchmark['settings']['budget_s']:g} s of training in each environment"),
    ]
    if kept is not None:
        test = f", test accuracy {kept['test_accuracy']:.4f}" if kept.get("test_accuracy") is not None else ""
        accuracy = f"validation accuracy {kept['val_accuracy']:.4f}{test}"
        rows.append(("best network", f"{kept['checkpoint']}, of {kept['environment']}: {accuracy}"))
        rows.append(("evaluate", kept["command"]))
    return rows


def height(shown: Sequence[Record]) -> float:
    """Return the inches of the chart."""
    return 1.6 + 0.7 * len(shown) if shown else 0.0


def draw(ax: Axes, shown: Sequence[Record], title: str) -> None:
    """Draw the seconds per epoch on a log axis, with their speed-up over one worker."""
    spreads = [r["epoch_s"] for r in shown]
    for row, (r, s) in enumerate(zip(shown, spreads, strict=True)):  # points: a bar has no zero on a log axis
        ax.plot([s["low"], s["high"]], [row, row], "|-", color=DARK, linewidth=1.2, markersize=8, zorder=2)
        factor = results.speed_up(r, shown)
        text = f"{seconds(s['median'])} s" + "*" * r["is_extrapolated"]
        text += f", {factor:.2f}x" if factor is not None and r["workers"] > 1 else ""
        ax.annotate(text, (s["high"], row), (8, 0), textcoords="offset points", va="center", weight="bold")
    rows = range(len(shown))
    ax.plot([s["median"] for s in spreads], rows, "o", color=BLUE, markersize=8, zorder=3)
    ax.set_yticks(rows, [_label(r) for r in shown])
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.set_xscale("log")
    low, high = min(s["low"] for s in spreads) / 1.3, max(s["high"] for s in spreads) * 1.3
    ax.set_xlim(low, high * (high / low) ** 0.3)  # leaves space for the numbers
    ticks = (1, 2, 3, 4, 5, 6, 7, 8, 9) if high < 4 * low else (1, 2, 5) if high < 100 * low else (1,)
    ax.xaxis.set_major_locator(LogLocator(subs=ticks))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.grid(axis="x", which="major", color=LINE, linewidth=0.8, zorder=0)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(
        "training time per epoch (s, log scale): median, shortest and longest\n"
        "x: images per second relative to one worker on the same device"
        + ("\n*: extrapolated from a part of an epoch" if any(r["is_extrapolated"] for r in shown) else "")
    )
    ax.set_title(textwrap.fill(title, 70))


def _label(r: Record) -> str:
    workers = results.workers(r)
    if r["device"] == "cpu":
        workers += f", {plural(r['threads_per_worker'], 'thread')}" + " each" * (r["workers"] > 1)
    return "\n".join([*textwrap.wrap(printable(r["name"]), 30)[:2], workers])

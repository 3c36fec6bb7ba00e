"""Draws the report of a benchmark from its results.json, as a PDF page, with its chart as PNG."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from lockstep.benchmark import results
from lockstep.benchmark.results import Record
from lockstep.callbacks.plots import BLUE, new_figure, style
from lockstep.runs.files import JsonObject, atomic_file
from lockstep.system.terminal import printable
from lockstep.system.text import plural

A4 = (8.27, 11.69)  # inches
NUM_COLUMNS = 90  # characters per line


def write(path: Path, benchmark: JsonObject) -> None:
    """Write report.pdf and epoch_time.png into the folder `path`.

    Does nothing if no environment was measured.
    """
    timed_records = [r for r in benchmark["environments"] if r.get("epoch_s")]
    if not timed_records:
        return
    with style():
        with atomic_file(path / "report.pdf") as file:
            page(benchmark, timed_records).savefig(
                file, format="pdf", metadata={"CreationDate": None}
            )
        chart = new_figure(1.5 + 0.5 * len(timed_records))
        draw(chart.subplots(), timed_records)
        with atomic_file(path / "epoch_time.png") as file:
            chart.savefig(file, format="png", dpi=160)


def page(benchmark: JsonObject, timed_records: Sequence[Record]) -> Figure:
    """Draw the facts, the table and the chart on a page of A4."""
    records = benchmark["environments"]
    lines = [
        f"Benchmark of {benchmark['name']}",
        *(f"{name}: {value}" for name, value in facts(benchmark) if value),
    ]
    lines += [results.summary(r) for r in records if r["state"] != "measured"]
    header = "\n".join(textwrap.fill(printable(line), NUM_COLUMNS) for line in lines)
    figure = Figure(figsize=A4, layout=ConstrainedLayoutEngine(w_pad=0.5, h_pad=0.5))
    top, bottom = figure.subplots(2)
    top.axis("off")
    top.set_title(header, size=9, weight="normal", linespacing=1.5)
    table = top.table(
        results.rows(records),
        colLabels=results.HEADS,
        cellLoc="center",
        loc="upper center",
        edges="horizontal",
    )
    table.auto_set_font_size(False)
    table.auto_set_column_width(range(len(results.HEADS)))
    draw(bottom, timed_records)
    return figure


def facts(benchmark: JsonObject) -> list[tuple[str, str]]:
    """Return command, date, machine and versions of a benchmark, as (name, value)."""
    rows = [
        ("command", benchmark["command"]),
        ("date", benchmark["date"]),
        ("budget", f"{benchmark['settings']['budget_s']:g} s of training in each environment"),
        ("machines", benchmark["nodes"]),
    ]
    # The machine is unknown if every environment failed.
    if machine := benchmark["environment"]:
        versions = [
            f"{name} {machine['packages'][name]}" for name in ("torch", "lightning", "lockstep")
        ]
        rows += [
            ("CPU", f"{machine['cpu']}, {machine['cpu_cores']} cores"),
            ("GPUs", ", ".join(machine["gpus"])),
            ("versions", ", ".join([f"Python {machine['python']}", *versions])),
        ]
    return rows


def draw(ax: Axes, timed_records: Sequence[Record]) -> None:
    """Draw the seconds per epoch of each environment: median, shortest and longest."""
    spreads = [r["epoch_s"] for r in timed_records]
    errors = [[s["median"] - s["low"] for s in spreads], [s["high"] - s["median"] for s in spreads]]
    rows = range(len(timed_records))
    bars = ax.barh(rows, [s["median"] for s in spreads], xerr=errors, color=BLUE, capsize=3)
    ax.bar_label(bars, [f"{s['median']:.4g} s" for s in spreads], padding=4)
    ax.set_yticks(rows, [f"{r['name']}\n{plural(r['workers'], 'worker')}" for r in timed_records])
    ax.invert_yaxis()
    ax.margins(x=0.15)
    ax.set_xlabel("training time per epoch in seconds: median, shortest and longest")

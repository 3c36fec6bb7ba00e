"""The pictures of a benchmark, for paper and screen, drawn without a display."""

import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure, FigureBase
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lockstep.benchmark import results, scaling
from lockstep.benchmark.results import Record, printable, seconds
from lockstep.callbacks.plots import AMBER, BLUE, DARK, FAINT, LINE, RED, new_figure
from lockstep.system.wording import plural

COLOURS = {"compute": BLUE, "input": AMBER, "communication": RED}


@dataclass(frozen=True)
class Chart:
    """A picture that draws itself into a figure, or a part of a page, of `WIDTH` and so many inches."""

    height: float
    draw: Callable[[FigureBase], None]

    def figure(self) -> Figure:
        """The picture alone, bound to no display."""
        figure = new_figure(self.height)
        self.draw(figure)
        return figure


def label(record: Record) -> str:
    """An environment with its workers and devices, in short lines."""
    names = list(dict.fromkeys(record["devices"]))
    device = f"{record['workers']} × {', '.join(names) or record['device'].upper()}"
    if record["device"] == "cpu":
        threads = record["threads_per_worker"]
        device += f", {plural(threads, 'thread')}{' each' if record['workers'] > 1 else ''}"
    return "\n".join([printable(record["name"]), *textwrap.wrap(printable(device), 30)[:3]])


def epoch_times(records: Sequence[Record], title: str) -> Chart | None:
    """Seconds per epoch on a log axis, with value and factor over the first; None where nothing was measured."""
    shown = [r for r in records if r.get("epoch_s")]
    if not shown:
        return None
    return Chart(1.5 + 0.75 * len(shown), lambda fig: _draw_epoch_times(fig, shown, title))


def _draw_epoch_times(fig: FigureBase, shown: Sequence[Record], title: str) -> None:
    ax = fig.subplots()
    medians = [r["epoch_s"]["median"] for r in shown]
    lows = [r["epoch_s"]["low"] for r in shown]
    highs = [r["epoch_s"]["high"] for r in shown]
    rows = range(len(shown))
    whiskers = [
        [m - low for m, low in zip(medians, lows, strict=True)],
        [h - m for h, m in zip(highs, medians, strict=True)],
    ]
    # points: a bar has no zero on a log axis
    ax.errorbar(medians, rows, xerr=whiskers, fmt="none", ecolor=DARK, elinewidth=1.2, capsize=4, zorder=2)
    ax.plot(medians, rows, "o", color=BLUE, markersize=8, zorder=3)
    for row, r, high in zip(rows, shown, highs, strict=True):
        times = results.factor(r, shown)
        text = f"{seconds(r['epoch_s']['median'])} s" + ("*" if r["is_extrapolated"] else "")
        unsteady = "\nunsteady" if results.result(r).unsteady else ""
        text += f"\n{times:.2f}×" if row and times else unsteady
        ax.annotate(text, (high, row), (7, 0), textcoords="offset points", va="center", fontweight="bold")
    ax.set_yticks(rows, [label(r) for r in shown])
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.set_xscale("log")
    low, high = min(lows) / 1.3, max(highs) * 1.3
    ax.set_xlim(low, high * (high / low) ** 0.3)  # room for the numbers
    is_narrow = high / low < 100
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if is_narrow else (1.0,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.grid(axis="x", which="major", color=LINE, linewidth=0.8, zorder=0)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("training time per epoch (s, log scale); shorter is better")
    ax.set_title("\n".join(textwrap.wrap(printable(title), 80)))
    note = "points: median, whiskers: shortest and longest epoch, ×: speed-up over the first environment"
    if any(r["is_extrapolated"] for r in shown):
        note += "; *: extrapolated from a part of an epoch"
    fig.supxlabel("\n".join(textwrap.wrap(note, 110)), fontsize=7.5, color=FAINT)


def step_parts(records: Sequence[Record]) -> Chart | None:
    """What a step is made of, in milliseconds; None where no steps were measured, or none that were steady."""
    shown = [(r, t) for r in records if (t := results.terms_of(r)) is not None and not t.is_unsteady]
    if not shown:
        return None
    return Chart(1.4 + 0.6 * len(shown), lambda fig: _draw_step_parts(fig, shown))


def _draw_step_parts(fig: FigureBase, shown: Sequence[tuple[Record, scaling.Terms]]) -> None:
    ax = fig.subplots()
    longest = 1000 * max(terms.total_s for _, terms in shown)
    for row, (_, terms) in enumerate(shown):
        start, shares = 0.0, terms.shares()
        for name, share in shares.items():
            value = 1000 * share * terms.total_s
            ax.barh(row, value, left=start, height=0.4, color=COLOURS[name])
            start += value
        words = ", ".join(f"{scaling.percent(share)} {name}" for name, share in shares.items())
        text = f"{scaling.milliseconds(terms.total_s)}: {words}"
        ax.annotate(text, (0, row - 0.2), (2, 3), textcoords="offset points", va="bottom", fontsize=7.5)
    ax.set_yticks(range(len(shown)), [printable(r["name"]) for r, _ in shown])
    ax.set_ylim(len(shown) - 0.6, -0.65)
    ax.set_xlim(0, 1.02 * longest)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("time of one optimizer step (ms)")
    ax.set_title("What a step is made of")
    handles = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    fig.legend(handles=handles, loc="outside lower right", ncols=3, frameon=False, fontsize=8)


def predicted(records: Sequence[Record]) -> Chart | None:
    """Efficiency of weak scaling against the number of workers; None where nothing can be predicted."""
    shown = [(r, t) for r in records if (t := results.terms_of(r)) is not None and scaling.predict(t, 1) is not None]
    if not shown:
        return None
    return Chart(3.0, lambda fig: _draw_predicted(fig, shown))


def _draw_predicted(fig: FigureBase, shown: Sequence[tuple[Record, scaling.Terms]]) -> None:
    ax = fig.subplots()
    workers = [2**n for n in range(11)]
    for number, (r, terms) in enumerate(shown):
        curve = [prediction.efficiency for n in workers if (prediction := scaling.predict(terms, n)) is not None]
        marks = [prediction for n in scaling.FAR if (prediction := scaling.predict(terms, n)) is not None]
        colour = list(COLOURS.values())[number % len(COLOURS)]
        ax.plot(workers, [100 * value for value in curve], color=colour, label=printable(r["name"]))
        ax.plot([m.num_workers for m in marks], [100 * m.efficiency for m in marks], "o", color=colour, markersize=4)
        if len(shown) == 1:
            for m in marks:
                ax.annotate(
                    scaling.percent(m.efficiency),
                    (m.num_workers, 100 * m.efficiency),
                    (5, 5),
                    textcoords="offset points",
                )
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.set_xlim(1, 2048)
    ax.set_ylim(0, 112)
    ax.set_yticks(range(0, 101, 20))
    ax.grid(color=LINE, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xlabel("workers (log scale)")
    ax.set_ylabel("efficiency T(1) / T(W) (%)")
    ax.set_title("Predicted weak scaling")
    ax.legend(frameon=False, fontsize=8, loc="upper right")


def svg(fig: Figure) -> str:
    """The figure as an <svg> element, without what points to the outside."""
    text = io.StringIO()
    fig.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return text.getvalue()[text.getvalue().index("<svg") :]

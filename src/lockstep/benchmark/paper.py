"""Blocks of text, tables and charts, set one below the other on pages of A4."""

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, FigureBase, SubFigure

from lockstep.benchmark.charts import Chart
from lockstep.benchmark.results import printable
from lockstep.callbacks.plots import DARK, FAINT, WIDTH

A4 = (8.27, 11.69)  # inches
SIDE = (A4[0] - WIDTH) / 2
TOP = 0.65
LEADING = 1.45  # of the font size
POINT = 1 / 72  # inches
LETTER = 0.56  # mean width of DejaVu Sans, of the font size
BOLD = 1.15  # wider by that


def paragraph(text: str, *, size: float = 9, is_bold: bool = False) -> Chart:
    """Wrapped text with some space below."""
    per_line = int(WIDTH / (LETTER * size * POINT))
    lines = textwrap.wrap(printable(text), per_line) or [""]
    height = (len(lines) * LEADING + (0.6 if size > 8 else 0.25)) * size * POINT

    def draw(fig: FigureBase) -> None:
        weight = "bold" if is_bold else "normal"
        spacing = LEADING / 1.164  # matplotlib's unit is the height of a line of DejaVu Sans
        fig.text(0, 1, "\n".join(lines), size=size, weight=weight, va="top", linespacing=spacing)

    return Chart(height, draw)


def heading(text: str) -> Chart:
    """A bold line of text with space above."""
    chart = paragraph(text, size=11, is_bold=True)

    def draw(fig: FigureBase) -> None:
        fig.text(0, 0.62, text, size=11, weight="bold", va="top")

    return Chart(chart.height + 0.15, draw)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Chart:
    """Columns as wide as their longest cell, the first to the left and the others to the right, all on the page."""
    wide = [2.5 + max(BOLD * len(head[i]), *(len(row[i]) for row in rows)) for i in range(len(head))]
    size = min(8.0, WIDTH / (sum(wide) * LETTER * POINT))
    step = size * 1.9 * POINT
    height = (len(rows) + 1) * step + 0.12

    def draw(fig: FigureBase) -> None:
        ends = [sum(wide[: i + 1]) / sum(wide) for i in range(len(wide))]
        for number, line in enumerate([head, *rows]):
            y = 1 - (number + 0.5) * step / height
            for i, cell in enumerate(line):
                x, side = (0.0, "left") if i == 0 else (ends[i], "right")
                weight = "bold" if number == 0 else "normal"
                fig.text(
                    x,
                    y,
                    printable(cell),
                    size=size,
                    ha=side,
                    va="center",
                    weight=weight,
                    color=DARK if number else FAINT,
                )

    return Chart(height, draw)


def pages(blocks: Sequence[Chart]) -> list[Figure]:
    """The blocks in their order on as many pages as it takes."""
    room = A4[1] - 2 * TOP
    sheets: list[list[Chart]] = [[]]
    for block in blocks:
        if sheets[-1] and sum(b.height for b in sheets[-1]) + block.height > room:
            sheets.append([])
        sheets[-1].append(block)
    return [_page(sheet, room, f"{number} / {len(sheets)}") for number, sheet in enumerate(sheets, 1)]


def _page(blocks: Sequence[Chart], room: float, number: str) -> Figure:
    page = Figure(figsize=A4)
    FigureCanvasAgg(page)
    heights = [block.height for block in blocks]
    ratios = [TOP, *heights, max(0.0, room - sum(heights)) + TOP]
    across = (SIDE, WIDTH, SIDE)
    parts: Any = page.subfigures(len(ratios), 3, height_ratios=ratios, width_ratios=across, wspace=0, hspace=0)
    for block, row in zip(blocks, parts[1:-1], strict=True):
        _set(block, row[1])
    page.text(1 - SIDE / A4[0], TOP / 2 / A4[1], number, ha="right", size=8, color=FAINT)
    return page


def _set(block: Chart, part: SubFigure) -> None:
    """Draw `block` as it stands alone: the solver of constrained layout fails for a page of many parts now and then."""
    block.draw(part)
    if part.axes:
        alone = block.figure()
        alone.draw_without_rendering()
        for here, there in zip(part.axes, alone.axes, strict=True):
            here.set_position(there.get_position())

"""Prints texts and tables on a terminal and in a log.

The module does not import torch, so that commands that only read start immediately.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from lockstep.system import output

# A value that begins with one of these is a command.
PROGRAMS = ("lockstep ", "python ", "cat ", "tail ")
LOG_WIDTH = 10_000  # columns of a log, where nothing is truncated
# Maximum characters in a line of a cell on a terminal, and in one of a column that may be narrower
# than its text.
MAX_COLUMN_WIDTH, MIN_COLUMN_WIDTH = 40, 20


class Terminal(Console):
    """Rich's console, which removes terminal commands from the texts that it prints."""

    @property
    @override
    def file(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        file = super().file
        return output.Unfiltered(file) if isinstance(file, output.Printed) else file

    @override
    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield segment._replace(text=output.strip_commands(segment.text))


def terminal(*, is_error: bool = False) -> Terminal:
    """Return a console for standard output or error.

    In a file or a log, it prints plain text without colors or wrapping. A notebook cell counts as a
    log. In a notebook, rich would make HTML of every line, and FORCE_COLOR is set.
    """
    if (sys.stderr if is_error else sys.stdout).isatty():
        return Terminal(highlight=False, stderr=is_error)
    return Terminal(
        highlight=False,
        soft_wrap=True,
        width=LOG_WIDTH,
        stderr=is_error,
        force_terminal=False,
        force_jupyter=False,
    )


def debug(clear: Callable[[], object] = lambda: None) -> None:
    """Open a debugger in the caller of `breakpoint()`.

    `clear` ends a live line before the debugger opens. Ctrl-C still stops the run.
    """
    import pdb

    clear()
    pdb.Pdb(nosigint=True).set_trace(inspect.stack()[1].frame)


def duration(seconds: float) -> str:
    """Format seconds as 7.3 s, 4:05, 1:02:03 or 3 d 4 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 72:
        return f"{hours // 24:,} d {hours % 24} h"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def printable(line: str) -> str:
    """Replace characters that are not printable by blanks."""
    return "".join(c if c.isprintable() else " " for c in line)


def print_line(out: Console, line: str, style: str | Style = "") -> None:
    """Print a line.

    On a terminal, it is broken between words, and indented from its second line on.
    """
    out.print(Text(_break_lines(line, out.width, 4), style=style), soft_wrap=True)


def _break_lines(paragraph: str, width: int, indent: int) -> str:
    """Break a paragraph into lines of a width, but unlike rich never break a path."""
    blanks = " " * indent
    lines = textwrap.TextWrapper(
        width,
        initial_indent=blanks,
        subsequent_indent=blanks,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.fill(printable(paragraph))[indent:]


def show_table(title: str, rows: Iterable[tuple[str, str | Text]]) -> None:
    """Print a title and aligned name-value rows between two rules.

    Rows without a value are omitted. A long value continues in its column. A command stays in one
    piece, so that it can be copied, and a long command has a line of its own.
    """
    out = terminal()
    filled_rows = [row for row in rows if row[1]]
    label_width = 2 + max(len(label) for label, _ in filled_rows)
    dash = "-" if out.options.ascii_only else "─"
    rule = Text(dash * min(78, out.width), style="dim")
    print_line(out, title, "bold")
    out.print(rule)
    for label, value in filled_rows:
        line = str(value)
        if line.startswith(PROGRAMS):
            is_long = label_width + len(line) > out.width
            lines = "\n" * is_long + printable(line)
        else:
            lines = _break_lines(line, out.width, label_width)
        style = value.style if isinstance(value, Text) else ""
        cells = ((f"{printable(label):<{label_width}}", "dim"), (lines, style))
        out.print(Text.assemble(*cells), soft_wrap=True)
    out.print(rule)


def new_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    out: Console,
    *,
    right: Sequence[str] = (),
    wraps: Sequence[str] = (),
) -> Table:
    """Make a table with as many columns, from the left, as fit into a terminal.

    It has at least two columns, and in a log it has all. `right` names the right-aligned columns,
    and `wraps` names those that may become narrower than their texts.
    """
    lines = [
        [cell if isinstance(cell, Text) else Text(printable(cell)) for cell in line]
        for line in (header, *rows)
    ]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    remaining_width = out.width
    for head, *cells in zip(*lines, strict=True):
        limit = MIN_COLUMN_WIDTH if head.plain in wraps else MAX_COLUMN_WIDTH
        min_width = min(max(cell.cell_len for cell in (head, *cells)), limit)
        if min_width > remaining_width and len(table.columns) >= 2 and out.is_terminal:
            break
        is_exact = min_width <= remaining_width and head.plain not in wraps and out.is_terminal
        width = min_width if is_exact else None
        justify = "right" if head.plain in right else "left"
        table.add_column(head, justify=justify, width=width, overflow="fold")
        remaining_width -= min_width + 2
    for line in lines[1:]:
        table.add_row(*line[: len(table.columns)])
    return table


def print_table(table: Table, out: Console) -> None:
    """Print a table, in a log without colors and without blanks at the ends of lines."""
    if out.is_terminal:
        out.print(table)
        return
    paper = Console(width=LOG_WIDTH, color_system=None, force_jupyter=False)
    with paper.capture() as capture:
        paper.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    out.print(Text("\n".join(lines)))


def measure(value: float) -> str:
    """Format a metric with four decimals, or with four digits if it is small or large."""
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 1e5 else f"{value:.4g}"

"""How Lockstep speaks on a terminal and in a log. No torch: tools that only watch start at once."""

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text
from typing_extensions import override

from lockstep.system import output

PROGRAMS = ("lockstep ", "python ", "cat ")  # a value that begins so is a command


class Terminal(Console):
    """rich's console, which alone commands a terminal: texts that it is given do not."""

    @property
    @override
    def file(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        file = super().file
        return output.Unfiltered(file) if isinstance(file, output.Printed) else file

    @override
    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=output.without_commands(segment.text))


def terminal(*, is_error: bool = False) -> Terminal:
    """Standard output, or standard error; plain text without colours or wrapping where it is a file or a log.

    The cell of a notebook is such a log, though there rich would make a box of HTML of every line, and FORCE_COLOR is
    set, by which rich would take the output of a worker for a terminal.
    """
    if (sys.stderr if is_error else sys.stdout).isatty():
        return Terminal(highlight=False, stderr=is_error)
    return Terminal(
        highlight=False, soft_wrap=True, width=120, stderr=is_error, force_terminal=False, force_jupyter=False
    )


def is_cell() -> bool:
    """Whether standard output is the cell of a notebook, where a line can be written anew, and nothing else moves."""
    return type(sys.stdout).__module__.partition(".")[0] == "ipykernel"


def duration(seconds: float) -> str:
    """Seconds as 7.3 s, 4:05, 1:02:03 or 3 d 4 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 72:
        return f"{hours // 24:,} d {hours % 24} h"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def printable(text: str) -> str:
    """A text without characters that move the cursor or hide."""
    return "".join(c if c.isprintable() else " " for c in text)


def say(out: Console, text: Text, *, indent: int = 4) -> None:
    """Print a text that a terminal breaks between words, never in one, and indents from its second line on."""
    ends, used = [], 0
    for word in re.finditer(r"(^\s+)?\S+\s*", text.plain) if out.is_terminal else ():
        if indent < used and used + cell_len(word[0].rstrip()) > out.width:
            ends.append(word.start())
            used = indent
        used += cell_len(word[0])
    for number, part in enumerate(text.divide(ends)):
        part.rstrip()
        out.print(Text(" " * indent if number else "").append_text(part), soft_wrap=True)


def show_table(title: str, rows: Sequence[tuple[str, str | Text]]) -> None:
    """A title and aligned name-value rows, between two rules; a long value continues in its column."""
    out = terminal()
    wide = max(cell_len(name) for name, _ in rows)
    rule = Text("─" * min(out.width, 78), style="dim")
    say(out, Text(title, style="bold"))
    out.print(rule)
    for name, value in rows:
        line = Text.assemble((f"{name:<{wide}}  ", "dim"), value)
        if str(value).startswith(PROGRAMS):  # must stay copyable, whatever the width of the terminal
            out.print(line, soft_wrap=True)
        else:
            say(out, line, indent=wide + 2)
    out.print(rule)


def measure(value: float) -> str:
    """A metric with four digits behind the point, or with four digits where it is small or large."""
    return f"{value:.4f}" if 0.001 <= abs(value) < 1e5 or value == 0 else f"{value:.4g}"

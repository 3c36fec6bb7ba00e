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
LEAST_VALUE = 20  # letters beside a name in which words are read with ease


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


def wrapped(text: Text, width: int) -> list[Text]:
    """The lines of a text, broken between words where they are wider than `width`; a word is never broken."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        ends, used = [], 0
        for word in re.finditer(r"\S+\s*", line.plain):
            if used and used + cell_len(word[0].rstrip()) > width:
                ends.append(word.start())
                used = 0
            used += cell_len(word[0])
        for part in line.divide(ends):
            part.rstrip()
            lines.append(part)
    return lines


def say(out: Terminal, text: Text, *, indent: int = 4) -> None:
    """Print a text that a terminal breaks between words, with what follows set in by `indent`; a log gets it whole."""
    parts = wrapped(text, max(1, out.width - indent)) if out.is_terminal else [text]
    for number, part in enumerate(parts):
        out.print(Text(" " * indent if number else "").append_text(part), soft_wrap=True)


def show_table(title: str, rows: Sequence[tuple[str, str | Text]]) -> None:
    """A title and aligned name-value rows, between two rules; a long value goes on in its column."""
    out = terminal()
    wide = max(cell_len(name) for name, _ in rows)
    rule = "─" * min(out.width, 78)
    say(out, Text(title, style="bold"))
    out.print(Text(rule, style="dim"))
    for name, value in rows:
        line = Text(f"{name:<{wide}}  ", style="dim")
        line.append_text(Text("", style="not dim").append(value))
        if str(value).startswith(PROGRAMS):  # must stay copyable, whatever the width of the terminal
            out.print(line, soft_wrap=True)
        else:
            _say_beside(out, line, wide + 2)
    out.print(Text(rule, style="dim"))


def _say_beside(out: Terminal, line: Text, indent: int) -> None:
    """Print a name and, from column `indent` on, its value; below the name where that leaves no room for words."""
    if not out.is_terminal or line.cell_len <= out.width:
        out.print(line, soft_wrap=True)
        return
    name, value = line.divide([indent])
    if out.width - indent < LEAST_VALUE:
        out.print(name, soft_wrap=True)
        name, indent = Text("    "), 4
    for number, part in enumerate(wrapped(value, max(1, out.width - indent))):
        out.print((Text(" " * indent) if number else name.copy()).append_text(part), soft_wrap=True)


def measure(value: float) -> str:
    """A metric with four digits behind the point, or with four digits where it is small or large."""
    return f"{value:.4f}" if 0.001 <= abs(value) < 1e5 or value == 0 else f"{value:.4g}"

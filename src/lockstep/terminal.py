"""How Lockstep speaks on a terminal and in a log. No torch: tools that only watch start at once."""

import sys
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console as Terminal
from rich.text import Text


def terminal(*, is_error: bool = False) -> Terminal:
    """Standard output, or standard error; plain text without colours or wrapping where it is a file or a log."""
    if (sys.stderr if is_error else sys.stdout).isatty():
        return Terminal(highlight=False, stderr=is_error)
    return Terminal(highlight=False, soft_wrap=True, width=120, stderr=is_error)


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


def show_table(title: str, rows: Sequence[tuple[str, str | Text]]) -> None:
    """A title and aligned name-value rows, between two rules."""
    out = terminal()
    wide = max(cell_len(name) for name, _ in rows)
    rule = "─" * min(out.width, 78)
    out.print(Text(title, style="bold"))
    out.print(Text(rule, style="dim"))
    for name, value in rows:
        line = Text(f"{name:<{wide}}  ", style="dim")
        line.append_text(Text("", style="not dim").append(value))
        # a command must stay copyable, whatever the width of the terminal
        out.print(line, soft_wrap=True)
    out.print(Text(rule, style="dim"))

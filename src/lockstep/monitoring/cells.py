"""How a fact of a run reads: states, numbers and moments, for the tables of all watching commands."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from lockstep.runs.folder import LIVE_STATES

STYLES = {
    **dict.fromkeys(LIVE_STATES, "cyan"),
    "finished": "green",
    "stopped": "yellow",
    "pruned": "dim",
    "failed": "red",
    "no signal": "red",
    "broken": "red",
    "not started": "dim",
}
NONE = "-"
ELLIPSIS = "…"


def number(value: float | None) -> str:
    """A measured number: four decimals where they say enough."""
    if value is None:
        return NONE
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3e}"


def epochs(facts: Mapping[str, Any]) -> str:
    """The number of epochs begun, and of all epochs."""
    if "epoch" not in facts:
        return NONE
    return f"{facts['epoch']}/{facts['max_epochs']}" if "max_epochs" in facts else str(facts["epoch"])


def best(facts: Mapping[str, Any]) -> str:
    """The best value so far and what it is of."""
    return f"{facts.get('monitor', '')} {number(facts['best'])}".strip() if "best" in facts else NONE


def moment(seconds: float | None) -> str:
    """Seconds since 1970 as the day and time here."""
    local_time = _local(seconds)
    return f"{local_time:%Y-%m-%d %H:%M:%S}" if local_time else NONE


def short_moment(seconds: float | None, now: float) -> str:
    """As `moment`, without the year, the day or the seconds where they go without saying."""
    local_time, today = _local(seconds), datetime.fromtimestamp(now)
    if local_time is None:
        return NONE
    if local_time.date() == today.date():
        return f"{local_time:%H:%M}"
    return f"{local_time:%m-%d %H:%M}" if local_time.year == today.year else f"{local_time:%Y-%m-%d}"


def _local(seconds: float | None) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds) if seconds is not None else None
    except (ValueError, OverflowError, OSError):  # beyond the calendar
        return None


def size(num_bytes: int) -> str:
    """Bytes in the unit that fits."""
    value, units = float(num_bytes), ["bytes", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:,.0f} bytes" if units[0] == "bytes" else f"{value:,.1f} {units[0]}"


def cut(text: str, width: int, *, keeps_end: bool = False) -> str:
    """A text in at most `width` > 0 columns, with … where something is missing."""
    if cell_len(text) <= width:
        return text
    if not keeps_end:
        return set_cell_size(text, width - 1).rstrip() + ELLIPSIS
    while cell_len(text) > width - 1:
        text = text[1:]
    return ELLIPSIS + text


def aligned(lines: Sequence[Sequence[Text]], widths: Sequence[int], is_right: Sequence[bool]) -> Text:
    """Lines of cells in columns, two blanks between them; the last cell of a line has no blanks behind it."""
    out = Text(no_wrap=True)
    for number_, cells in enumerate(lines):
        if number_:
            out.append("\n")
        for i, cell in enumerate(cells):
            blanks = " " * (widths[i] - cell.cell_len)
            is_last = i == len(cells) - 1
            out.append("  " if i else "")
            out.append(blanks if is_right[i] else "").append_text(cell)
            out.append("" if is_right[i] or is_last else blanks)
    return out

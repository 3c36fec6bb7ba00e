"""How a fact of a run reads: states, numbers and moments, for the tables of all watching commands."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rich.text import Text

from lockstep.runs.folder import LIVE_STATES
from lockstep.system.terminal import measure, printable

STYLES = {
    **dict.fromkeys((*LIVE_STATES, "running", "configuring", "completing", "suspended"), "cyan"),
    **dict.fromkeys(("finished", "completed"), "green"),
    **dict.fromkeys(("stopped", "interrupted", "cancelled"), "yellow"),
    **dict.fromkeys(("not started", "pending", "queued", "pruned", "unknown"), "dim"),
}
NONE = "-"


def state(name: str) -> Text:
    """A state in its colour; those that are not known are a scheduler's words for a failure."""
    return Text(printable(name), style=STYLES.get(name, "red"))


def number(value: float | None) -> str:
    """A measured number."""
    if value is None:
        return NONE
    return f"{value:,}" if isinstance(value, int) else measure(value)


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
    try:
        return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}" if seconds is not None else NONE
    except (ValueError, OverflowError, OSError):  # beyond the calendar
        return NONE


def size(num_bytes: int) -> str:
    """Bytes in the unit that fits."""
    value, units = float(num_bytes), ["bytes", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:,.0f} bytes" if units[0] == "bytes" else f"{value:,.1f} {units[0]}"

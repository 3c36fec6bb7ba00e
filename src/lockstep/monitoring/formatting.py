"""Formats states, numbers and times for the tables of all commands that show runs."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.text import Text

from lockstep.runs.files import JsonObject
from lockstep.runs.folder import LIVE_STATES
from lockstep.system.terminal import duration, measure, printable

STYLES = {
    **dict.fromkeys((*LIVE_STATES, "running", "configuring", "completing", "suspended"), "cyan"),
    **dict.fromkeys(("finished", "completed"), "green"),
    **dict.fromkeys(("stopped", "interrupted", "cancelled"), "yellow"),
    **dict.fromkeys(("not started", "pending", "queued", "pruned", "unknown"), "dim"),
}
NONE = "-"
DECIMAL = re.compile(r"-?\d+\.\d+(e[-+]?\d+)?")


def state(state_name: str) -> Text:
    """Color a state.

    Unknown states are failures of a scheduler.
    """
    return Text(printable(state_name), style=STYLES.get(state_name, "red"))


def number(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,}" if isinstance(value, int) else measure(value)


def setting(value: Any) -> str:
    """Format a setting as it is typed."""
    return (
        value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    )


def text(value: Any) -> str:
    """Format a setting or a measured value.

    A long number has four digits, and several texts are joined.
    """
    if isinstance(value, str) and len(value) > 8 and DECIMAL.fullmatch(value):
        return f"{float(value):.4g}"
    if value is None or isinstance(value, float):
        return number(value)
    return printable(", ".join(value) if isinstance(value, list) else str(value))


def plain_facts(facts: JsonObject, path: Path) -> JsonObject:
    """Return the facts of a run for JSON, with its path in place of its id."""
    return {key: value for key, value in facts.items() if key != "id"} | {"path": str(path)}


def epochs(facts: JsonObject) -> str:
    if "epoch" not in facts:
        return NONE
    return (
        f"{facts['epoch']}/{facts['max_epochs']}" if "max_epochs" in facts else str(facts["epoch"])
    )


def best(facts: JsonObject) -> str:
    """Format the best value so far, with the name of its metric."""
    return (
        f"{facts.get('monitor', '')} {number(facts['best'])}".strip() if "best" in facts else NONE
    )


def time(seconds: float | None) -> str:
    return NONE if seconds is None else duration(seconds)


def moment(seconds: float | None) -> str:
    """Format seconds since 1970 as local date and time."""
    if seconds is None:
        return NONE
    try:
        return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        # The moment is beyond the calendar.
        return NONE

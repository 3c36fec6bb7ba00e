"""Rows of measurements: medians and spreads of alternating rounds."""

import platform
import statistics
from collections.abc import Callable, Sequence
from datetime import date
from typing import NamedTuple

import torch

from lockstep.system.provenance import describe


class Row(NamedTuple):
    """One measured number: its median with unit, its smallest and largest value, of how many, and what we aim at."""

    what: str
    median: str
    spread: str
    n: int
    aim: str = ""


def row(what: str, values: Sequence[float], form: str, *, aim: str = "") -> Row:
    """Return the row of `values`, each written by `form`, e.g. "{:.2f} s"."""
    spread = f"{form.format(min(values))} to {form.format(max(values))}"
    return Row(what, form.format(statistics.median(values)), spread, len(values), aim)


def alternate(num_rounds: int, **measured: Callable[[], float]) -> dict[str, list[float]]:
    """Values of every function, called in turn in every round: in the given order, then in the reverse one."""
    values: dict[str, list[float]] = {name: [] for name in measured}
    for number in range(num_rounds):
        for name in list(measured) if number % 2 == 0 else reversed(measured):
            values[name].append(measured[name]())
    return values


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Quotients of the values of the same round: what slows the machine for a while slows both."""
    return [a / b for a, b in zip(above, below, strict=True)]


def markdown(title: str, rows: Sequence[Row]) -> str:
    """Return a section with a table."""
    lines = [f"## {title}", "", "| what | median | spread | n | aim |", "| --- | --- | --- | --- | --- |"]
    lines += ["| " + " | ".join(map(str, cells)) + " |" for cells in rows]
    return "\n".join(lines) + "\n"


def device() -> str:
    """Return the GPU, or the CPU with its number of cores."""
    facts = describe()
    return facts["gpus"][0] if facts["gpus"] else f"{facts['cpu']}, {facts['cpu_cores']} cores"


def conditions() -> str:
    """Return the machine, the versions and the day, in one line."""
    return f"{device()}; torch {torch.__version__}, Python {platform.python_version()}; {date.today().isoformat()}"

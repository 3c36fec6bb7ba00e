"""Rows of measurements: medians and spreads of alternating rounds."""

import json
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks import page
from lockstep.system.provenance import describe


class Row(NamedTuple):
    """One measured number.

    It has a median with unit, a smallest and largest value, their number, and our aim.
    """

    what: str
    median: str
    spread: str
    n: int
    aim: str = ""


def row(what: str, values: Sequence[float], form: str, *, aim: str = "") -> Row:
    """Return the row of `values`, each written by `form`, e.g. "{:.2f} s"."""
    spread = f"{form.format(min(values))} to {form.format(max(values))}" if len(values) > 1 else ""
    return Row(what, form.format(statistics.median(values)), spread, len(values), aim)


def mean_row(what: str, values: Sequence[float]) -> Row:
    """Return the row of the mean over seeds."""
    return row(f"{what} (mean)", values, "{:.4f}")._replace(median=f"{statistics.mean(values):.4f}")


def alternate(num_rounds: int, **measured: Callable[[], float]) -> dict[str, list[float]]:
    """Return the values of every function, called in turn in every round.

    The order is the given one, then the reverse one.
    """
    values: dict[str, list[float]] = {name: [] for name in measured}
    for number in range(num_rounds):
        for name in list(measured) if number % 2 == 0 else reversed(measured):
            values[name].append(measured[name]())
    return values


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Quotients of the values of the same round: what slows the machine for a while slows both."""
    return [a / b for a, b in zip(above, below, strict=True)]


def device() -> str:
    """Return the GPU, or the CPU with its number of cores."""
    facts = describe()
    return facts["gpus"][0] if facts["gpus"] else f"{facts['cpu']}, {facts['cpu_cores']} cores"


def software() -> str:
    return f"torch {torch.__version__}, Python {platform.python_version()}"


def publish(section: str, rows: Sequence[Row], words: Sequence[str] = ()) -> None:
    """Print rows, store them in the file of a section, and write the page.

    They replace the earlier rows of this command. The command is that of this process, or its
    module with `words`.
    """
    script = Path(sys.argv[0])
    module = script.parent.name if script.stem == "__main__" else script.stem
    command = " ".join(["python -m", f"benchmarks.{module}", *(words or sys.argv[1:])])
    path = page.RESULTS / f"{section}.json"
    content = json.loads(path.read_text())
    sources = {source["command"]: source for source in content["sources"]}
    sources[command] = {
        "command": command,
        "device": device(),
        "software": software(),
        "date": date.today().isoformat(),
        "rows": [row._asdict() for row in rows],
    }
    path.write_text(json.dumps({**content, "sources": list(sources.values())}, indent=1) + "\n")
    page.PAGE.write_text(page.page())
    print(page.table(Row._fields, rows), flush=True)


def measure(**measures: tuple[str, Callable[[], list[Row]]]) -> None:
    """Measure what the command line names, by default everything, and publish it in its section."""
    for name in sys.argv[1:] or measures:
        section, rows_of = measures[name]
        publish(section, rows_of(), [name])

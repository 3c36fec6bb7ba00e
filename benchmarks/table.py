"""Rows of measurements: medians and spreads of alternating rounds."""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from benchmarks import page
from lockstep.system.provenance import describe

Value = TypeVar("Value")


class Row(NamedTuple):
    """One measured number.

    It has a median with unit, a smallest and largest value, their number, our aim, and the values
    whose mean has an interval.
    """

    what: str
    median: str
    spread: str
    n: int
    aim: str = ""
    values: Sequence[float] = ()


def row(what: str, values: Sequence[float], form: str, *, aim: str = "") -> Row:
    """Return the row of `values`, each written by `form`, e.g. "{:.2f} s"."""
    spread = f"{form.format(min(values))} to {form.format(max(values))}" if len(values) > 1 else ""
    return Row(what, form.format(statistics.median(values)), spread, len(values), aim)


def mean_row(what: str, values: Sequence[float]) -> Row:
    """Return the row of the mean over seeds."""
    mean = f"{statistics.mean(values):.4f}"
    return row(f"{what} (mean)", values, "{:.4f}")._replace(median=mean, values=values)


def progress(line: str, end: str = "\n") -> None:
    """Print a line of progress to stderr. The tables are all that a command prints to stdout."""
    print(line, end=end, file=sys.stderr, flush=True)


def alternate(num_rounds: int, **measured: Callable[[], Value]) -> dict[str, list[Value]]:
    """Return the values of every function, called in turn in every round.

    The order is the given one, then the reverse one. The seconds of each call are printed.
    """
    values: dict[str, list[Value]] = {name: [] for name in measured}
    for number in range(num_rounds):
        for name in list(measured) if number % 2 == 0 else reversed(measured):
            progress(f"round {number + 1} of {num_rounds}, {name}: ", end="")
            started = time.perf_counter()
            values[name].append(measured[name]())
            progress(f"{time.perf_counter() - started:.1f} s")
    return values


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Quotients of the values of the same round: what slows the machine for a while slows both."""
    return [a / b for a, b in zip(above, below, strict=True)]


def ratio_row(
    what: str, above: Sequence[float], below: Sequence[float], form: str, *, aim: str = ""
) -> Row:
    """Return the row of the quotients, with both medians written by `form`, e.g. "{:.0f} s"."""
    quotients = row(what, ratios(above, below), "{:.2f}", aim=aim)
    median_above = form.partition(" ")[0].format(statistics.median(above))
    medians = f"{median_above} : {form.format(statistics.median(below))}"
    return quotients._replace(median=f"{quotients.median} ({medians})")


def device() -> str:
    """Return the GPU, or the CPU with its number of cores."""
    facts = describe()
    return facts["gpus"][0] if facts["gpus"] else f"{facts['cpu']}, {facts['cpu_cores']} cores"


def software() -> str:
    return f"torch {torch.__version__}, Python {platform.python_version()}"


def module() -> str:
    """Return the command that runs this module: `python -m benchmarks.NAME`."""
    script = Path(sys.argv[0])
    name = script.parent.name if script.stem == "__main__" else script.stem
    return f"python -m benchmarks.{name}"


def publish(section: str, rows: Sequence[Row], words: str = "") -> None:
    """Print rows, store them in the file of a section, and write the page.

    They replace the earlier rows of this command, which is the module with `words`.
    """
    command = f"{module()} {words}".rstrip()
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
    print(page.table(Row._fields[:5], [row[:5] for row in rows]), flush=True)


def parser(num_rounds: int | None = None) -> argparse.ArgumentParser:
    """Return the command line of a benchmark, with its number of rounds."""
    parser = argparse.ArgumentParser(module())
    parser.add_argument("--rounds", type=int, default=num_rounds, help="number of rounds")
    return parser


def measure(**measures: tuple[str, Callable[..., list[Row]]]) -> None:
    """Measure what the command line names, by default everything, and publish it in its section.

    Each function takes the number of rounds, and has a default for it.
    """
    command_line = parser()
    command_line.add_argument("names", nargs="*", help=f"default: {' '.join(measures)}")
    arguments = command_line.parse_args()
    if unknown := sorted({*arguments.names} - measures.keys()):
        command_line.error(f"{unknown[0]} is not one of {', '.join(measures)}")
    rounds = [] if arguments.rounds is None else [arguments.rounds]
    for name in arguments.names or measures:
        section, rows_of = measures[name]
        progress(f"{module()} {name}")
        publish(section, rows_of(*rounds), name)

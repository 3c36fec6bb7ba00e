"""Write docs/results.md from benchmarks/results: a JSON file for each section, and other tools.

The command is `python -m benchmarks.page`.
"""

import json
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from scipy.stats import t as student

from benchmarks import ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
HEAD = """\
# Results: accuracy, speed, exactness and cost

Each table has the command that measures it again, and the device and date for which it is valid. \
*n* is the number of runs
or rounds, and *result* their median, or their mean where marked. A mean over seeds has a
[95 % interval](sweeps.md#seeds-and-chance). Each round measures both sides of a ratio, in \
alternating order. Parentheses
show their medians. An *aim* is what we want to reach. No run used several GPUs or \
several machines.

A command prints a line for each round, and `--rounds N` sets their number. \
`python -m benchmarks.page` writes this page.
[The log](log.md) has ideas that failed; earlier measurements are in git's history: \
`git show 1a27d529:docs/results.md`.
"""
SECTIONS = (
    *("accuracy", "fine-tuning", "gpu", "step", "first-command", "images"),
    *("exactness", "virtual-shards", "processes", "start", "scale", "near-duplicates", "signals"),
)
COLUMNS = ("what", "result", "lowest to highest", "n", "95 % interval", "aim", "source")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    cells = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(map(str, row)) + " |\n" for row in cells)


def interval(row: dict[str, Any]) -> str:
    """Return the 95 % interval of a mean over seeds.

    Up to three values follow from the lowest, the highest and the mean, rounded.
    """
    values = row.get("values", [])
    if "(mean)" in row["what"] and row["n"] in (2, 3):
        low, high = map(float, row["spread"].split(" to "))
        values = [low, high, 3 * float(row["median"]) - low - high][: row["n"]]
    if not values:
        return ""
    error = statistics.stdev(values) / math.sqrt(len(values))
    low, high = student.interval(0.95, len(values) - 1, statistics.mean(values), error)
    return f"{low:.3f} to {high:.3f}"


def aim(row: dict[str, Any]) -> str:
    """Return the aim, and whether the result misses an aim such as `<= 0.3 ms` or `>= 15`."""
    bound = re.match(r"([<>])= (\S+)", row["aim"])
    if bound is None:
        return row["aim"]
    result, limit = (float(text.replace(",", "")) for text in (row["median"].split()[0], bound[2]))
    is_missed = result > limit if bound[1] == "<" else result < limit
    return row["aim"] + ", missed" * is_missed


def section(content: dict[str, Any]) -> str:
    """Return a section: its table, and the command, device, versions and day of each row."""
    rows, sources = [], []
    for number, source in enumerate(content["sources"], 1):
        for row in source["rows"]:
            figures = (row["what"], row["median"], row["spread"], row["n"], interval(row), aim(row))
            rows.append((*figures, f"({number})"))
        machine = f"{source['device']}; {source['software']}; {source['date']}"
        sources.append(f"{number}. `{source['command']}`: {machine}\n")
    shown = [cells for cells in zip(COLUMNS, *rows, strict=True) if any(cells[1:])]
    columns, *rows = zip(*shown, strict=True)
    note = content.get("note", "")
    return f"\n## {content['title']}\n\n{note}{table(columns, rows)}\n{''.join(sources)}"


def page() -> str:
    contents = [json.loads((RESULTS / f"{name}.json").read_text()) for name in SECTIONS]
    other_tools = (RESULTS / "other-tools.md").read_text()
    return HEAD + "".join(map(section, contents)) + other_tools


if __name__ == "__main__":
    PAGE.write_text(page())

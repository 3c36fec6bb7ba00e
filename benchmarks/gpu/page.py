"""What the stages found, as results.json and as a Markdown page: each file is replaced in one step."""

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from lockstep.runs.files import write_atomically

HEAD = ["what", "result", "predicted", "aim", "met"]
VERDICTS = {True: "yes", False: "**no**", None: ""}


def write(folder: Path, title: str, results: Sequence[dict[str, Any]]) -> None:
    """Replace results.json and gpu.md in `folder`."""
    day = date.today().isoformat()
    write_atomically(folder / "results.json", json.dumps({"command": title, "date": day, "stages": results}, indent=1))
    write_atomically(folder / "gpu.md", markdown(title, day, results))


def markdown(title: str, day: str, results: Sequence[dict[str, Any]]) -> str:
    """Return the page: the stages with their ends, then what each of them found."""
    device = next(
        (row["result"] for stage in results for row in stage["rows"] if row["what"] == "GPU 0"), "device unknown"
    )
    parts = [f"# On a GPU\n\n`{title}`: {device}; {day}.\n"]
    lines = [["stage", "how it ended", "seconds", "limit", "why"]]
    for result in results:
        seconds = [f"{result[key]:.0f}" if key in result else "" for key in ("seconds", "limit_s")]
        lines.append([result["name"], result["state"], *seconds, result["reason"]])
    parts.append(table(lines))
    for result in results:
        if result["rows"]:
            parts.append(f"## {result['name']}\n\n" + table([HEAD, *_cells(result)]))
    return "\n".join(parts)


def table(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first line is its head."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in [cells[0], ["---"] * len(cells[0]), *cells[1:]]) + "\n"


def summary(result: dict[str, Any]) -> str:
    """Describe a stage in a few lines, for the terminal."""
    seconds = f" after {result['seconds']:.0f} s" if "seconds" in result else ""
    head = f"{result['name']}: {result['state']}{seconds}" + (f" ({result['reason']})" if result["reason"] else "")
    return "\n".join([head, *("  " + ", ".join(filter(None, cells)) for cells in _cells(result))])


def _cells(result: dict[str, Any]) -> list[list[str]]:
    rows = result["rows"]
    return [[row["what"], row["result"], row["predicted"], row["aim"], VERDICTS[row["is_met"]]] for row in rows]

"""Measure everything that needs no GPU and write docs/benchmarks.md; about 40 minutes on two quiet cores.

With titles of sections, e.g. `python -m benchmarks Messages "Small workers"`, only these are measured, and printed.
"""

import sys
from pathlib import Path

from benchmarks import checkpoint, input, processes, step, sweep, talk
from benchmarks.table import conditions, markdown

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
SECTIONS = (
    ("A step", step.overhead),
    ("The full ResNet-18", step.resnet18),
    ("Watching", step.watching),
    ("Averaged weights", step.averaging),
    ("Input", input.generated),
    ("Messages", talk.messages),
    ("Batch norm", talk.norms),
    ("Workers", processes.workers),
    ("Small workers", processes.small_workers),
    ("Start", processes.start_up),
    ("Sweeps", sweep.sweeps),
    ("Checkpoints", checkpoint.checkpoint),
)


def chosen(titles: list[str]) -> None:
    """Measure the sections of these titles and print them, with the machine they count for."""
    sections = dict(SECTIONS)
    unknown = [title for title in titles if title not in sections]
    if unknown:
        sys.exit(f"{', '.join(unknown)}: no such section; there are {', '.join(sections)}")
    print(f"{conditions()}\n")
    for title in titles:
        print(markdown(title, sections[title]()), flush=True)


def main() -> None:
    """Print every section as soon as it is measured, then write the page."""
    intro = (
        "Ratios are quotients within one round; rounds alternate the order. A figure counts for the machine it comes "
        "from, and only where nothing else ran there."
    )
    parts = [f"# Benchmarks\n\n`python -m benchmarks`: {conditions()}.\n{intro}\n"]
    for title, measure in SECTIONS:
        parts.append(markdown(title, measure()))
        print(parts[-1], flush=True)
    lines = [f"| {name} | {seconds:.2f} s |" for name, seconds in processes.import_breakdown()]
    parts.append(
        "\n".join(["## What a training imports", "", "| package | its own time |", "| --- | --- |", *lines, ""])
    )
    print(parts[-1], flush=True)
    PAGE.write_text("\n".join(parts))


if __name__ == "__main__":
    chosen(sys.argv[1:]) if sys.argv[1:] else main()

"""Measure everything that needs no GPU and write docs/benchmarks.md; 40 to 80 minutes on two quiet cores.

`python -m benchmarks start sweeps` measures these sections alone, and writes no file.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks import checkpoint, input, parts, processes, step, sweep, talk
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
    ("Small workers that do not talk", processes.small_apart),
    ("Start", processes.start_up),
    ("Parts of a start", parts.parts),
    ("Sweeps", sweep.sweeps),
    ("Sweeps of two workers", sweep.of_two_workers),
    ("Checkpoints", checkpoint.checkpoint),
)


def main(words: Sequence[str] | None = None) -> None:
    """Print every section as soon as it is measured, then write the page, unless sections were chosen."""
    names = {title.lower().replace(" ", "-"): (title, measure) for title, measure in SECTIONS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("sections", nargs="*", metavar="SECTION", choices=[[], *names], help=", ".join(names))
    chosen = parser.parse_args(words).sections
    if chosen:
        print(conditions(), flush=True)
        for title, measure in map(names.__getitem__, chosen):
            print("\n" + markdown(title, measure()), flush=True)
        return
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
    main()

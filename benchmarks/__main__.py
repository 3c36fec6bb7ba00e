"""Measure everything that needs no GPU: 60 to 100 minutes on two quiet cores. Results go to benchmarks/results/.

`python -m benchmarks start sweeps` measures these sections alone, with `--rounds 2` in fewer rounds. Each section
replaces its file, and docs/results.md is written again from all files.
"""

import argparse
import json
import platform
from collections.abc import Sequence
from datetime import date

import torch

from benchmarks import (
    augmentations,
    checkpoint,
    dropout,
    epoch,
    features,
    input,
    near_copies,
    page,
    parts,
    photographs,
    predict,
    processes,
    step,
    sweep,
    talk,
)
from benchmarks.table import Row, device, markdown

SECTIONS = (
    ("A step", step.overhead),
    ("The full ResNet-18", step.resnet18),
    ("The first epoch", epoch.first_epoch),
    ("Watching", step.watching),
    ("Averaged weights", step.averaging),
    ("Input", input.generated),
    ("Photographs", photographs.photographs),
    ("Predict", predict.predict),
    ("Features", features.features),
    ("Near copies", near_copies.near_copies),
    ("Augmentations", augmentations.augmentations),
    ("Messages", talk.messages),
    ("Batch norm", talk.norms),
    ("Dropout", dropout.dropout),
    ("Workers", processes.workers),
    ("Small workers", processes.small_workers),
    ("Small workers without messages", processes.small_apart),
    ("Virtual shards", processes.virtual_shards),
    ("Start", processes.start_up),
    ("Parts of a start", parts.parts),
    ("Sweeps", sweep.sweeps),
    ("Sweeps of two workers", sweep.of_two_workers),
    ("Checkpoints", checkpoint.checkpoint),
)


def main(words: Sequence[str] | None = None) -> None:
    """Print and store every section as soon as it is measured."""
    names = {title.lower().replace(" ", "-"): (title, measure) for title, measure in SECTIONS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("sections", nargs="*", metavar="SECTION", choices=[[], *names], help=", ".join(names))
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="of sections that have rounds, in place of their own number"
    )
    found = parser.parse_args(words)
    given = {} if found.rounds is None else {"num_rounds": found.rounds}
    for name in found.sections or names:
        title, measure = names[name]
        rows = measure(**given)
        print(markdown(title, rows), flush=True)
        store(name, rows, "" if found.rounds is None else f" --rounds {found.rounds}")
    page.PAGE.write_text(page.page())


def store(name: str, rows: Sequence[Row], options: str = "") -> None:
    """Replace the result file of a section."""
    content = {
        "command": f"python -m benchmarks {name}{options}",
        "device": device(),
        "software": f"torch {torch.__version__}, Python {platform.python_version()}",
        "date": date.today().isoformat(),
        "rows": [row._asdict() for row in rows],
    }
    (page.RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

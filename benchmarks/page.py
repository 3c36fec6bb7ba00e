"""Write docs/results.md from benchmarks/results/*.json: `python -m benchmarks.page`."""

import json
import re
from collections.abc import Sequence
from typing import Any

from benchmarks import ROOT
from lockstep.sweeps.differences import spread

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
HEAD = """\
# Results: accuracy, exactness and speed

Written by `python -m benchmarks.page` from the files in `benchmarks/results/`. A command below measures again;
`python -m benchmarks` and its sections replace their files. Each figure is valid for its device and date only.
*n* is the number of runs or rounds; *result* is their median, or the mean where marked. A mean over seeds has a
[95 % interval](sweeps.md#seeds-and-chance). Two or three seeds hardly show a deviation, so theirs is wide.
Ratios are taken within one round, and rounds alternate the order.

An *aim* is what we want to reach. {missed}.

No run used several GPUs or several machines. [How GPUs are measured](gpu.md#what-the-figures-mean) explains the terms.
[Reliability](reliability.md) has the end of a run after each signal.
"""
ACCURACY = (
    *("digits", "fashion-mnist-quarter", "fashion-mnist-quarter-float32", "d2l-fashion-mnist", "cifar10-eighth"),
    *("recipes-quarter", "cifar10-recipes-quarter", "init-quarter", "public-recipe-quarter"),
)
QUESTIONS: dict[str, Sequence[str]] = {
    "How long does the first command take?": ("first-command",),
    "How accurate are the recipes?": (*(f"accuracy-{name}" for name in ACCURACY), "gpu-accuracy", "gpu-cifar10"),
    "What does fine-tuning gain?": ("finetune", "animals"),
    "What do features that are computed once save?": ("features",),
    "Do features tell images of other classes?": ("strange",),
    "How exact are several workers?": ("exactness", "gpu-exactness", "gpu-graphs"),
    "How fast is one GPU?": ("gpu-speed", "gpu-epoch", "gpu-step"),
    "How fast is a step next to a raw loop and a usual template?": ("the-full-resnet-18", "a-step"),
    "Where does an epoch on a CPU go?": ("the-first-epoch",),
    "Do several processes pay on one CPU?": ("workers", "small-workers", "small-workers-without-messages", "unequal"),
    "What do virtual shards cost?": ("virtual-shards",),
    "What do messages between workers cost?": ("messages", "batch-norm"),
    "What does exact dropout cost?": ("dropout",),
    "How fast are images read?": ("input", "input-cifar10", "photographs"),
    "Which near copies are found?": ("near-copies", "near-copies-cifar10"),
    "How fast are images augmented?": ("augmentations",),
    "How soon does a training start?": ("start", "parts-of-a-start", "submit"),
    "How fast does a sweep start its trials?": ("sweeps", "sweeps-of-two-workers"),
    "What do watching, averaging and saving cost?": ("watching", "averaged-weights", "checkpoints"),
}
COLUMNS = ("what", "result", "lowest to highest", "n", "95 % interval", "aim", "source")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    cells = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(map(str, row)) + " |" for row in cells]


def interval(row: dict[str, Any]) -> str:
    """Return the 95 % interval of a mean over seeds; up to three follow, rounded, from lowest, highest and mean."""
    values = row.get("values", [])
    if "(mean)" in row["what"] and row["n"] in (2, 3):
        low, high = map(float, row["spread"].split(" to "))
        values = [low, high, 3 * float(row["median"]) - low - high][: row["n"]]
    if not values:
        return ""
    found = spread(values, are_folds=False)
    return f"{found.low:.3f} to {found.high:.3f}"


def is_missed(row: dict[str, Any]) -> bool:
    """Return True if the result is on the wrong side of an aim such as `<= 0.3 ms` or `>= 15`."""
    if not (bound := re.match(r"([<>])= (\S+)", row["aim"])):
        return False
    result, limit = (float(text.replace(",", "")) for text in (row["median"].split()[0], bound[2]))
    return result > limit if bound[1] == "<" else result < limit


def aim(row: dict[str, Any]) -> str:
    return row["aim"] + ", missed" * is_missed(row)


def missed_aims(found: dict[str, dict[str, Any]]) -> str:
    """Return how many aims of which questions are missed."""
    counts = {
        title: sum(map(is_missed, (row for name in names for row in found[name]["rows"])))
        for title, names in QUESTIONS.items()
    }
    parts = (f"*{title}* ({count})" for title, count in counts.items() if count)
    return f"{sum(counts.values())} were missed, under {', '.join(parts)}"


def question(title: str, files: Sequence[dict[str, Any]]) -> str:
    """Return the section of a question: one table, and the command, device, versions and day of each row."""
    rows = [
        (
            row["what"],
            row["median"],
            row["spread"],
            row["n"],
            interval(row),
            row["aim"] + ", missed" * is_missed(row),
            f"({number})",
        )
        for number, file in enumerate(files, 1)
        for row in file["rows"]
    ]
    shown = [cells for cells in zip(COLUMNS, *rows, strict=True) if cells[0] != "95 % interval" or any(cells[1:])]
    columns, *rows = zip(*shown, strict=True)
    sources = [
        f"{number}. `{file['command']}`: {file['device']}; {file['software']}; {file['date']}"
        for number, file in enumerate(files, 1)
    ]
    notes = [text for file in files if "note" in file for text in (file["note"], "")]
    return "\n".join(["", f"## {title}", "", *notes, *table(columns, rows), "", *sources, ""])


def page() -> str:
    found = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    shown = [name for names in QUESTIONS.values() for name in names]
    if set(shown) != set(found):
        raise ValueError(f"{RESULTS} and QUESTIONS differ in {sorted(set(shown) ^ set(found))}")
    sections = (question(title, [found[name] for name in names]) for title, names in QUESTIONS.items())
    return HEAD.format(missed=missed_aims(found)) + "".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page())

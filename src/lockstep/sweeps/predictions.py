"""`lockstep compare` of two CSV files: the predictions of two networks for the same images."""

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lockstep.runs.files import print_json
from lockstep.sweeps.differences import image_test, words
from lockstep.system.terminal import say, terminal

HEADS = (["file", "truth", "class"], ["file", "truth", "prediction"])  # of `lockstep eval`, and of out_of_fold.csv


def compare_predictions(names: Sequence[str], *, is_json: bool) -> int:
    """Print how the accuracies of two files differ. Returns the exit code. Raises ValueError for different images."""
    if len(names) != 2:
        raise ValueError(f"compare takes two CSV files, not {len(names)}.")
    first, second = (_read_predictions(Path(name)) for name in names)
    if other := {(file, row[0]) for file, row in first.items()} ^ {(file, row[0]) for file, row in second.items()}:
        raise ValueError(f"{names[0]} and {names[1]} have different images or true classes, such as {min(other)[0]}.")
    right = [{file for file, (truth, predicted) in rows.items() if truth == predicted} for rows in (first, second)]
    only = len(right[0] - right[1]), len(right[1] - right[0])
    difference, accuracies = image_test(*only, len(first)), [len(files) / len(first) for files in right]
    if is_json:
        print_json({"accuracies": accuracies, "only_right": only, **difference._asdict()})
        return 0
    out = terminal()
    for letter, name, accuracy, count in zip("AB", names, accuracies, only, strict=True):
        say(out, f"{letter}  {name}: accuracy {accuracy:.4f}, alone right on {count:,}")
    say(out, words(difference, "B", "images", is_max=True))
    say(out, "It is about these two networks: other seeds of their settings may differ more.")
    return 0


def _read_predictions(path: Path) -> dict[str, tuple[str, str]]:
    """Return true and predicted class by file name."""
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:  # a name need not be UTF-8
        try:
            head, *rows = list(csv.reader(file)) or [[]]
        except csv.Error as error:
            raise ValueError(f"{path} cannot be read: {error}.") from error
    if head[:3] not in HEADS or min(map(len, rows), default=0) < 3:
        what = f"{path} does not have rows of file, truth and class"
        raise ValueError(f"{what}: write it by lockstep eval RUN --output FILE.csv, of a classification.")
    name, count = Counter(row[0] for row in rows).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{path} has {name} {count} times: images are matched by their names.")
    return {row[0]: (row[1], row[2]) for row in rows}

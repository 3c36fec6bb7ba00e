"""Files with the probabilities of all classes for images that have a class."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from lockstep.inference.confident_learning import Labels, Probabilities
from lockstep.runs.files import MAX_UNPACKED_BYTES, read_bytes, strip_formula_mark
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import display_path

FOLD_FILES = "out_of_fold*.csv"  # These files are next to the run folders of a sweep.


def find_fold_file(run: RunFolder) -> Path | None:
    """Return the file of all folds of a setting that contains the rows of a run.

    The run is one of the trials of the setting. Returns None without such a file.
    """
    if not run.fold_rows.exists():
        return None
    *_, run_rows = read_bytes(run.fold_rows, MAX_UNPACKED_BYTES).partition(b"\n")
    files = sorted(run.path.parent.glob(FOLD_FILES))
    return next((path for path in files if run_rows in read_bytes(path, MAX_UNPACKED_BYTES)), None)


def read_rows(chunks: Iterable[str]) -> Iterator[list[str]]:
    """Yield the cells of each row of CSV."""
    for chunk in chunks:
        for row in csv.reader(io.StringIO(chunk, newline="")):
            yield [strip_formula_mark(cell) for cell in row]


def read(paths: Sequence[Path]) -> tuple[list[list[str]], list[str], Labels, Probabilities]:
    """Return rows, classes, labels and probabilities of files of `predict.write_probabilities`.

    The last cell of a row is the fold of a sweep, or the split of a run. Raises ValueError for
    other files.
    """
    header, lines = list[str](), list[list[str]]()
    try:
        for path in paths:
            content = read_bytes(path, MAX_UNPACKED_BYTES).decode(errors="surrogateescape")
            header, *rows = read_rows([content])
            lines += rows
        classes = header[3:-1]
        numbers = {name: number for number, name in enumerate(classes)}
        labels = np.array([numbers[line[1]] for line in lines])
        probabilities = np.array([line[3:-1] for line in lines], np.float64)
        is_whole = len(classes) > 1 and probabilities.shape == (len(lines), len(classes))
        if not is_whole or not ((probabilities >= 0) & (probabilities <= 1)).all():
            raise ValueError(header)
    except (OSError, csv.Error, IndexError, KeyError, ValueError) as error:
        raise ValueError(
            f"{display_path(paths[-1])} does not have the probability of each class in each row: "
            "the command of the sweep writes it again."
        ) from error
    return lines, classes, labels, probabilities

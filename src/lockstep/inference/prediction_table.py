"""The table that `lockstep predict` prints if it writes no file.

It has the first rows, and a summary of all.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lockstep.inference.row_chunks import RowWriter
from lockstep.inference.selective import UNKNOWN
from lockstep.runs.files import uncell
from lockstep.system.terminal import new_table, print_line, print_table, terminal
from lockstep.system.text import join_names, plural
from lockstep.tasks.classification import Classification
from lockstep.tasks.task import Task
from lockstep.tasks.vectors import Multilabel

MAX_ROWS, MAX_NAMES = 20, 5
MIN_PROBABILITY = 0.5  # minimum probability of a label that an image has


def count_answers(write: RowWriter, chunks: Iterable[str]) -> None:
    """Let `write` write rows of predictions, and print how many images have an answer."""
    is_answer = Counter[bool]()

    def counted_chunks() -> Iterator[str]:
        for chunk in chunks:
            is_answer.update(row[1] != UNKNOWN for row in _read_rows([chunk]))
            yield chunk

    write(counted_chunks())
    print(f"{is_answer[True]:,} of {plural(is_answer.total(), 'image')} answered", flush=True)


def _read_rows(chunks: Iterable[str]) -> Iterator[list[str]]:
    for chunk in chunks:
        for row in csv.reader(io.StringIO(chunk, newline="")):
            yield [uncell(cell) for cell in row]


def list_rows(
    task: Task, heads: Sequence[str], rows: list[dict[str, Any]], chunks: Iterable[str]
) -> None:
    """Add rows of predictions, which are CSV in the columns `heads`, to `rows`."""
    # This function created the rows. The cells of other tasks remain text.
    is_of = type(task).cells
    for file, *cells in _read_rows(chunks):
        values: list[str | float] = [*cells]
        if is_of is Classification.cells:
            values[1::2] = map(float, cells[1::2])
        elif is_of in (Multilabel.cells, Task.cells):
            values[:] = map(float, cells)
        rows.append(dict(zip(heads, [file, *values], strict=True)))


def show(task: Task, heads: Sequence[str], chunks: Iterable[str]) -> None:
    """Print rows of predictions, which are CSV in the columns `heads`, after the last one."""
    # This function created the rows. Those of other tasks are printed unchanged.
    is_of = type(task).cells
    rows = list[list[str]]()
    counts = Counter[str]()
    num_images = 0
    for file, *cells in _read_rows(chunks):
        num_images += 1
        if is_of is Classification.cells:
            cells[1::2] = [f"{float(cell):.4f}" for cell in cells[1::2]]
            counts[cells[0]] += 1
        elif is_of is Multilabel.cells:
            probabilities = dict(zip(heads[1:], map(float, cells), strict=True))
            labels = sorted(probabilities, key=lambda label: -probabilities[label])
            image_labels = [label for label in labels if probabilities[label] >= MIN_PROBABILITY]
            counts.update(image_labels or ["none"])
            shown_labels = image_labels or labels[:1]
            cells = [", ".join(f"{label} {probabilities[label]:.4f}" for label in shown_labels)]
        if len(rows) < MAX_ROWS:
            rows.append([file, *cells])
    number_columns: Sequence[str] = ()
    if is_of is Multilabel.cells:
        heads = ["file", "labels"]
    elif is_of is Classification.cells:
        number_columns = heads[2::2]
    elif is_of is Task.cells:
        number_columns = heads[1:]
    text_columns = [head for head in heads if head not in number_columns]
    out = terminal()
    print_table(new_table(heads, rows, out, right=number_columns, wraps=text_columns), out)
    if num_images > 1:
        out.print()
        summary = plural(num_images, "image")
        if counts:
            class_counts = [f"{name} ({count:,})" for name, count in counts.most_common()]
            summary += f": {join_names(class_counts, MAX_NAMES)}"
        print_line(out, summary)
    if num_images > MAX_ROWS:
        print_line(out, f"These are the first {MAX_ROWS}. All rows: add --output predictions.csv")

"""The table that `lockstep predict` prints if it writes no file.

It has the first rows, and a summary of all.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from lockstep.inference.row_chunks import RowWriter
from lockstep.inference.selective import UNKNOWN
from lockstep.inference.tables import read_rows
from lockstep.runs.files import JsonObject
from lockstep.system.terminal import new_table, print_line, print_table, terminal
from lockstep.system.text import join_names, plural
from lockstep.tasks.classification import Classification
from lockstep.tasks.task import Task
from lockstep.tasks.vectors import Multilabel

MAX_ROWS, MAX_NAMES, MAX_UNCERTAIN = 20, 5, 3
MIN_PROBABILITY = 0.5  # minimum probability of a label that an image has


def count_answers(write: RowWriter, chunks: Iterable[str]) -> None:
    """Let `write` write rows of predictions, and print how many images have an answer."""
    is_answer = Counter[bool]()

    def counted_chunks() -> Iterator[str]:
        for chunk in chunks:
            is_answer.update(row[1] != UNKNOWN for row in read_rows([chunk]))
            yield chunk

    write(counted_chunks())
    print(f"{is_answer[True]:,} of {plural(is_answer.total(), 'image')} answered", flush=True)


def list_rows(
    task: Task, header: Sequence[str], rows: list[JsonObject], chunks: Iterable[str]
) -> None:
    """Add rows of predictions, which are CSV in the columns `header`, to `rows`."""
    # Only the built-in `cells` functions have known columns. Other cells remain text.
    cells_function = type(task).cells
    for file, *cells in read_rows(chunks):
        values: list[str | float] = [*cells]
        if cells_function is Classification.cells:
            values[1::2] = map(float, cells[1::2])
        elif cells_function in (Multilabel.cells, Task.cells):
            values[:] = map(float, cells)
        rows.append(dict(zip(header, [file, *values], strict=True)))


def show(task: Task, header: Sequence[str], chunks: Iterable[str]) -> None:
    """Print rows of predictions, which are CSV in the columns `header`, after the last one."""
    # Only the built-in `cells` functions have known columns. Other rows are printed unchanged.
    cells_function = type(task).cells
    rows = list[list[str]]()
    counts = Counter[str]()
    least_certain = list[tuple[float, str]]()
    num_images = 0
    for file, *cells in read_rows(chunks):
        num_images += 1
        if cells_function is Classification.cells:
            cells[1::2] = [f"{float(cell):.4f}" for cell in cells[1::2]]
            counts[cells[0]] += 1
            least_certain = heapq.nsmallest(
                MAX_UNCERTAIN,
                [*least_certain, (float(cells[1]), f"{file} ({' '.join(cells[:2])})")],
            )
        elif cells_function is Multilabel.cells:
            labels = sorted(
                zip(map(float, cells), header[1:], strict=True), key=lambda label: -label[0]
            )
            image_labels = [name for value, name in labels if value >= MIN_PROBABILITY]
            counts.update(image_labels or ["none"])
            cells = [
                ", ".join(f"{name} {value:.4f}" for value, name in labels[: len(image_labels) or 1])
            ]
        if len(rows) < MAX_ROWS:
            rows.append([file, *cells])
    header = ["file", "labels"] if cells_function is Multilabel.cells else header
    number_columns = (
        header[2::2]
        if cells_function is Classification.cells
        else header[1:]
        if cells_function is Task.cells
        else ()
    )
    text_columns = [name for name in header if name not in number_columns]
    out = terminal()
    print_table(new_table(header, rows, out, right=number_columns, wraps=text_columns), out)
    if num_images > 1:
        out.print()
        summary = join_names(
            [f"{name} ({count:,})" for name, count in counts.most_common()], MAX_NAMES
        )
        print_line(out, ": ".join(filter(None, [plural(num_images, "image"), summary])))
    if num_images > MAX_ROWS:
        if least_certain:
            print_line(out, f"Least certain: {', '.join(doubt for _, doubt in least_certain)}")
        print_line(out, f"These are the first {MAX_ROWS}. All rows: add --output predictions.csv")

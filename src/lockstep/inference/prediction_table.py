"""The table that `lockstep predict` prints if it writes no file: the first rows, and a summary of all."""

import csv
import heapq
import io
from collections import Counter
from collections.abc import Iterable, Sequence

from lockstep.runs.files import uncell
from lockstep.system.terminal import new_table, print_table, say, terminal
from lockstep.system.wording import join_names, plural
from lockstep.tasks.classification import Classification
from lockstep.tasks.task import Task
from lockstep.tasks.vectors import Multilabel

MOST_ROWS, MOST_NAMES, MOST_DOUBTS = 20, 5, 3
LEAST = 0.5  # probability of a label that an image has
Doubt = tuple[float, str]  # how certain an answer is, and the answer


def show(task: Task, heads: Sequence[str], chunks: Iterable[str]) -> None:
    """Print rows of predictions, which come as CSV below `heads`, once all are there."""
    read = {Classification.cells: _class_cells, Multilabel.cells: _label_cells}.get(type(task).cells)
    shown, counts, doubts = list[list[str]](), Counter[str](), list[Doubt]()
    num_images = 0
    for file, *cells in (map(uncell, row) for text in chunks for row in csv.reader(io.StringIO(text, newline=""))):
        num_images += 1
        if read is not None:
            cells, answers, (certainty, doubtful) = read(heads[1:], cells)
            counts.update(answers)
            doubts = heapq.nsmallest(MOST_DOUBTS, [*doubts, (certainty, f"{file} ({doubtful})")])
        if len(shown) < MOST_ROWS:
            shown.append([file, *cells])
    heads = ["file", "labels"] if read is _label_cells else heads
    numbers = heads[2::2] if read is _class_cells else heads[1:] if type(task).cells is Task.cells else ()
    out = terminal()
    print_table(new_table(heads, shown, out, right=numbers, wraps=[head for head in heads if head not in numbers]), out)
    if num_images > 1:
        found = join_names([f"{name} {count:,}" for name, count in counts.most_common()], MOST_NAMES)
        out.print()
        say(out, f"{plural(num_images, 'image')}{': ' if found else ''}{found}")
    if num_images > len(shown):
        if doubts:
            say(out, f"Least certain: {', '.join(text for _, text in doubts)}")
        say(out, f"These are the first {len(shown)}. All rows: add --output predictions.csv")


def _class_cells(heads: Sequence[str], cells: Sequence[str]) -> tuple[list[str], list[str], Doubt]:
    """Return cells of the table, the answers among them, and the doubt, for names and probabilities in turn."""
    shown = [f"{float(cell):.4f}" if column % 2 else cell for column, cell in enumerate(cells)]
    return shown, shown[:1], (float(cells[1]), " ".join(shown[:2]))


def _label_cells(heads: Sequence[str], cells: Sequence[str]) -> tuple[list[str], list[str], Doubt]:
    """Return the same for a probability of each label."""
    labels = [(float(cell), f"{name} {float(cell):.2f}", name) for name, cell in zip(heads, cells, strict=True)]
    found = [label for label in labels if label[0] >= LEAST]
    doubtful = min(labels, key=lambda label: abs(label[0] - LEAST))
    text = ", ".join(text for _, text, _ in found) or f"none ({max(labels)[1]})"
    return [text], [name for *_, name in found] or ["none"], (abs(doubtful[0] - LEAST), doubtful[1])

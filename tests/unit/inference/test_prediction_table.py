"""The table that a prediction prints: its rows, its summary, and its width."""

import io
import re
from typing import Any

import pytest
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from lockstep.inference import prediction_table
from lockstep.runs.files import csv_text
from lockstep.tasks import Classification, Multilabel, Regression
from lockstep.tasks.task import Task

CLASSES = ["file", "class", "probability", "class_2", "probability_2"]


class Words(Task):
    """A custom task with columns of its own."""

    @override
    def columns(self, class_names: Any) -> list[str]:
        return ["verdict"]

    @override
    def cells(self, predictions: Tensor, class_names: Any) -> list[list[str]]:
        return [["good"] for _ in predictions]


def task_of(kind: type[Task]) -> Task:
    if kind is Classification:
        return Classification(loss=None, label_smoothing=0.0, class_weights=None)
    return Words() if kind is Words else kind(loss=F.mse_loss)


def printed(capsys: pytest.CaptureFixture[str], kind: type[Task], heads: list[str], *chunks: list[list[str]]) -> str:
    prediction_table.show(task_of(kind), heads, map(csv_text, chunks))
    return capsys.readouterr().out


CLASS_ROW = ["a.jpg", "cat", "0.9876", "dog", "0.0124"]
OF_LABELS = [["a.jpg", "0.5", "0.75", "0.1"], ["b.jpg", "0.2", "0.1", "0.4999"], ["c.jpg", "0.1", "0.9", "0"]]


@pytest.mark.parametrize(
    ("kind", "heads", "rows", "cells", "summary"),
    [
        (Classification, CLASSES, [CLASS_ROW], [CLASS_ROW], []),
        (
            Multilabel,
            ["file", "cat", "dog", "a bird"],
            OF_LABELS,
            [["a.jpg", "dog 0.7500, cat 0.5000"], ["b.jpg", "a bird 0.4999"], ["c.jpg", "dog 0.9000"]],
            ["3 images: dog (2), cat (1), none (1)"],
        ),
        (
            Regression,
            ["file", "age"],
            [["a.jpg", "-12.5"], ["b.jpg", "nan"]],
            [["a.jpg", "-12.5"], ["b.jpg", "nan"]],
            ["2 images"],
        ),
        (Words, ["file", "verdict"], [["a.jpg", "good"]], [["a.jpg", "good"]], []),
    ],
)
def test_table(
    capsys: pytest.CaptureFixture[str], kind: type[Task], heads: list[str], rows: Any, cells: Any, summary: list[str]
) -> None:
    lines = printed(capsys, kind, heads, rows).splitlines()
    assert [re.split("  +", line) for line in lines[1 : len(rows) + 1]] == cells
    assert lines[len(rows) + 2 :] == summary


def test_table_of_many_images(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["dog", "cat", "=eel"]
    rows = [[f"-{number}.jpg", names[number % 3], f"{0.9 - number / 100:.6f}", "fox", "0.1"] for number in range(25)]
    lines = printed(capsys, Classification, CLASSES, rows[:7], rows[7:]).splitlines()
    assert [line.split()[0] for line in lines[1:21]] == [row[0] for row in rows[:20]]
    assert lines[22] == "25 images: dog (9), cat (8), =eel (8)"
    assert lines[23].endswith("-24.jpg (dog 0.6600), -23.jpg (=eel 0.6700), -22.jpg (cat 0.6800)")


def test_rows_for_json_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list[dict[str, Any]]()
    chunks = [csv_text([["a.jpg", "cat", "0.75", "dog", "0.25"]])]
    prediction_table.show(task_of(Classification), CLASSES, chunks, rows=rows)
    assert [row["probability"] for row in rows] == [0.75]
    assert capsys.readouterr() == ("", "")


def test_answers_are_counted_as_rows_pass(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["unknown", "5", "44"]
    rows = [[f"unknown,{number}.jpg", names[number % 3], "0.5"] for number in range(1300)]
    chunks = [csv_text(rows[:3]), csv_text(rows[3:])]
    prediction_table.count_answers(lambda rows: print(*rows, sep="", end=""), chunks)
    assert capsys.readouterr().out == "".join(chunks) + "866 of 1,300 images answered\n"


def test_no_row_is_printed_if_a_later_image_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def chunks() -> Any:
        yield csv_text([["a.jpg", "cat", "0.9", "dog", "0.1"]])
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        prediction_table.show(task_of(Classification), CLASSES, chunks())
    assert capsys.readouterr().out == ""


def test_long_names_fit_into_eighty_columns_and_a_name_cannot_command(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    screen = Console(file=file, width=80, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(prediction_table, "terminal", lambda: screen)
    photo, turtle = f"{'trap ' * 9}IMG_2024_10_01.jpg", "Trachemys scripta elegans (red-eared slider)"
    rows = [[photo, turtle, "0.9", "Chrysemys picta", "0.1"], ["\x1b[2J\udcff\n.jpg", "a\tb", "0.5", "c", "0.4"]]
    prediction_table.show(task_of(Classification), CLASSES, [csv_text(rows)])
    assert max(map(len, file.getvalue().splitlines())) <= 80
    assert not re.search(r"[^\x20-\x7e\n]", file.getvalue())

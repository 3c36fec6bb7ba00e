"""The table that a prediction prints: its rows, its summary, and its width."""

import re
from typing import Any

import pytest
from torch.nn import functional as F

from lockstep.inference import prediction_table
from lockstep.runs.files import csv_text
from lockstep.tasks import Multilabel, Regression, Task
from tests.support.modules import classification

CLASSES = ["file", "class", "probability", "class_2", "probability_2"]


def printed(
    capsys: pytest.CaptureFixture[str], task: Task, heads: list[str], *chunks: list[list[str]]
) -> str:
    prediction_table.show(task, heads, map(csv_text, chunks))
    return capsys.readouterr().out


CLASS_ROW = ["a.jpg", "cat", "0.9876", "dog", "0.0124"]
OF_LABELS = [
    ["a.jpg", "0.5", "0.75", "0.1"],
    ["b.jpg", "0.2", "0.1", "0.4999"],
    ["c.jpg", "0.1", "0.9", "0"],
]


@pytest.mark.parametrize(
    ("task", "heads", "rows", "cells", "summary"),
    [
        (classification(), CLASSES, [CLASS_ROW], [CLASS_ROW], []),
        (
            Multilabel(loss=F.mse_loss),
            ["file", "cat", "dog", "a bird"],
            OF_LABELS,
            [
                ["a.jpg", "dog 0.7500, cat 0.5000"],
                ["b.jpg", "a bird 0.4999"],
                ["c.jpg", "dog 0.9000"],
            ],
            ["3 images: dog (2), cat (1), none (1)"],
        ),
        (
            Regression(loss=F.mse_loss),
            ["file", "age"],
            [["a.jpg", "-12.5"], ["b.jpg", "nan"]],
            [["a.jpg", "-12.5"], ["b.jpg", "nan"]],
            ["2 images"],
        ),
    ],
)
def test_table(
    capsys: pytest.CaptureFixture[str],
    task: Task,
    heads: list[str],
    rows: Any,
    cells: Any,
    summary: list[str],
) -> None:
    lines = printed(capsys, task, heads, rows).splitlines()
    assert [re.split("  +", line) for line in lines[1 : len(rows) + 1]] == cells
    assert lines[len(rows) + 2 :] == summary


def test_control_characters_removed(capsys: pytest.CaptureFixture[str]) -> None:
    """The name of a file or a class cannot command the terminal."""
    found = printed(
        capsys, classification(), CLASSES, [["\x1b[2J\udcff\n.jpg", "a\tb", "0.5", "c", "0.4"]]
    )
    assert not re.search(r"[^\x20-\x7e\n]", found)

"""The report of an evaluation against scikit-learn's."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import classification_report, confusion_matrix

from lockstep.training import report

NAMES = ["ape", "bee", "cat", "dog", "never"]


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 1, 2], [1]])  # "dog" is only predicted; one class alone
def test_scores_are_those_of_scikit_learn(labels: list[int]) -> None:
    draw = np.random.default_rng(0)
    true = draw.choice(labels, 200, p=(shares := np.arange(1, len(labels) + 1) ** 3) / shares.sum())
    predicted = np.where(draw.random(200) < 0.6, true, draw.integers(0, 4, 200))
    scores = report.scores_of(confusion_matrix(true, predicted, labels=range(5)), NAMES)
    zero: Any = 0  # scikit-learn declares a string
    numbers = sorted({*true.tolist(), *predicted.tolist()})
    expected: Any = classification_report(
        true, predicted, target_names=[NAMES[number] for number in numbers], output_dict=True, zero_division=zero
    )
    found = scores["classes"] | {"macro avg": scores["means"]["classes"], "weighted avg": scores["means"]["images"]}
    assert found.keys() == expected.keys() - {"accuracy"}
    for name, row in found.items():
        of_sklearn = {"images": "support", "f1": "f1-score"}
        wanted = {key: expected[name][of_sklearn.get(key, key)] for key in row}
        assert row == pytest.approx(wanted, abs=1e-12), name


def test_many_classes_are_printed_worst_first(capsys: pytest.CaptureFixture[str]) -> None:
    counts = 10 * np.eye(50, dtype=np.int64)
    counts[17, 3] = 40
    report.show(report.scores_of(counts, [f"class {number}" for number in range(50)]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["class", "images", "precision", "recall", "f1"]
    assert lines[1].split() == ["class", "3", "10", "0.2000", "1.0000", "0.3333"]
    assert lines[2].split() == ["class", "17", "50", "1.0000", "0.2000", "0.3333"]
    assert lines[-1] == "40 of 50 classes, those of the lowest f1; --json has all"

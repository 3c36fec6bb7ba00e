"""The report of an evaluation against scikit-learn's."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import classification_report, confusion_matrix

from lockstep.inference import class_report
from lockstep.models.outcomes import Findings

NAMES = ["ape", "bee", "cat", "dog", "never"]


def findings(true: NDArray[np.int64], predicted: NDArray[np.int64]) -> Findings:
    return Findings(len(NAMES), np.arange(len(true)), true, predicted, np.ones(len(true)))


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 1, 2], [1]])  # "dog" is only predicted; one class alone
def test_scores_are_those_of_scikit_learn(labels: list[int]) -> None:
    draw = np.random.default_rng(0)
    true = draw.choice(labels, 200, p=(shares := np.arange(1, len(labels) + 1) ** 3) / shares.sum())
    predicted = np.where(draw.random(200) < 0.6, true, draw.integers(0, 4, 200))
    scores = class_report.scores_of(findings(true, predicted), NAMES)
    counts = [[scores["confusion_matrix"].get(row, {}).get(name, 0) for name in NAMES] for row in NAMES]
    assert counts == confusion_matrix(true, predicted, labels=range(5)).tolist()
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
    true = np.array([*np.arange(20_000).repeat(10), *[17] * 40])
    predicted = np.array([*true[:200_000], *[3] * 40])
    scores = class_report.scores_of(findings(true, predicted), [f"class {number}" for number in range(20_000)])
    assert len(str(scores)) < 5e6
    class_report.show_report(scores)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["class", "images", "precision", "recall", "f1"]
    assert lines[1].split() == ["class", "3", "10", "0.2000", "1.0000", "0.3333"]
    assert lines[2].split() == ["class", "17", "50", "1.0000", "0.2000", "0.3333"]
    assert lines[-1] == "40 of 20,000 classes, those of the lowest f1; --json has all"

"""The report of an evaluation against scikit-learn's."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import classification_report, confusion_matrix

from lockstep.inference import class_report
from lockstep.models.predictions import Findings, Quality

NAMES = ["ape", "bee", "cat", "dog", "never"]


def findings(true: NDArray[np.int64], predicted: NDArray[np.int64]) -> Findings:
    sure = np.ones(len(true))
    return Findings(
        len(NAMES), np.arange(len(true)), true, predicted, sure, Quality(sure, sure, sure), None
    )


# "dog" is only predicted; one class alone
@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 1, 2], [1]])
def test_scores_as_scikit_learn(labels: list[int]) -> None:
    draw = np.random.default_rng(0)
    true = draw.choice(labels, 200, p=(shares := np.arange(1, len(labels) + 1) ** 3) / shares.sum())
    predicted = np.where(draw.random(200) < 0.6, true, draw.integers(0, 4, 200))
    scores = class_report.scores_of(findings(true, predicted), NAMES)
    counts = [
        [scores["confusion_matrix"].get(row, {}).get(name, 0) for name in NAMES] for row in NAMES
    ]
    assert counts == confusion_matrix(true, predicted, labels=range(5)).tolist()
    zero: Any = 0  # scikit-learn declares a string
    numbers = sorted({*true.tolist(), *predicted.tolist()})
    expected: Any = classification_report(
        true,
        predicted,
        target_names=[NAMES[number] for number in numbers],
        output_dict=True,
        zero_division=zero,
    )
    found = scores["classes"] | {
        "macro avg": scores["means"]["classes"],
        "weighted avg": scores["means"]["images"],
    }
    assert found.keys() == expected.keys() - {"accuracy"}
    for name, row in found.items():
        of_sklearn = {"images": "support", "f1": "f1-score"}
        wanted = {key: expected[name][of_sklearn.get(key, key)] for key in row}
        assert row == pytest.approx(wanted, abs=1e-12), name


def grouped(counts: list[tuple[int, int]]) -> tuple[Findings, list[str]]:
    """Return findings in mixed order, and the groups by position.

    In each group `right` of `count` images are right.
    """
    rows = [
        (number, at < right) for number, (right, count) in enumerate(counts) for at in range(count)
    ]
    order = np.random.default_rng(0).permutation(len(rows))
    is_right = np.array([rows[at][1] for at in order])
    return findings(np.ones(len(rows), int), np.where(is_right, 1, 2)), [
        f"patient {rows[at][0]}" for at in order
    ]


def test_accuracy_interval_as_bootstrap() -> None:
    draw = np.random.default_rng(1)
    counts = [(int(draw.binomial(size, 0.8)), int(size)) for size in draw.integers(1, 30, 23)]
    found = class_report.accuracy_interval(*grouped(counts))

    accuracies = []
    for _ in range(20_000):
        chosen = [counts[at] for at in draw.integers(0, 23, 23)]
        accuracies.append(sum(right for right, _ in chosen) / sum(count for _, count in chosen))
    low, high = np.percentile(accuracies, [2.5, 97.5])
    # of the quantiles of 10,000 resamples the standard error is 1 % of the width
    assert (found["low"], found["high"]) == pytest.approx((low, high), abs=0.06 * (high - low))
    assert found["num_groups"] == 23
    assert class_report.accuracy_interval(*grouped(counts)) == found

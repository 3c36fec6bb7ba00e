"""Confident learning against cleanlab, and its expected number of errors by chance.

That number is checked with labels that are known to be right.
"""

from pathlib import Path

import numpy as np
import pytest
from cleanlab.count import compute_confident_joint, get_confident_thresholds
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_self_confidence_for_each_label, order_label_issues

from lockstep.inference.confident_learning import (
    Labels,
    Probabilities,
    calibrate,
    confident_classes,
    expected,
    order,
    suspicious,
    thresholds,
)
from lockstep.inference.tables import read


def drawn(
    seed: int, count: int, classes: int, *, wrong: float = 0.1, decimals: int = 6
) -> tuple[Labels, Probabilities]:
    """Draw labels of which a part is wrong, and probabilities of a network that errs.

    Few decimals make ties.
    """
    draws = np.random.default_rng(seed)
    truth = draws.integers(classes, size=count)
    logits = draws.normal(size=(count, classes)) + 3 * np.eye(classes)[truth]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    moved = (draws.random(count) < wrong) * draws.integers(1, classes, size=count)
    return (truth + moved) % classes, probabilities.round(decimals)


ABSENT = drawn(10, 300, 6)
CASES = {
    **{f"seed {seed}": drawn(seed, 400, 7) for seed in range(4)},
    "two classes": drawn(4, 300, 2),
    "ties": drawn(5, 500, 5, decimals=1),
    "ties of two classes": drawn(6, 300, 2, decimals=1),
    "many wrong labels": drawn(7, 300, 3, wrong=0.6),
    "few images of many classes": drawn(8, 60, 40),
    "an absent class": (np.where(ABSENT[0] == 2, 3, ABSENT[0]), ABSENT[1]),
    "zeros": (np.array([0, 1, 0, 1, 1]), np.array([[0, 1], [0, 1], [0, 1], [1, 0], [0.0, 1]])),
    "a mean is rounded up": (
        np.array([0, 0, 0, 1, 1]),
        np.array([[0.1, 0.9]] * 3 + [[0.05, 0.95]] * 2),
    ),
    "all equal": (np.array([0, 1, 2, 1]), np.full((4, 3), 1 / 3)),
}


@pytest.mark.parametrize(("labels", "probabilities"), CASES.values(), ids=CASES)
def test_confident_learning_as_cleanlab(labels: Labels, probabilities: Probabilities) -> None:
    count = probabilities.shape[1]
    np.testing.assert_allclose(
        thresholds(labels, probabilities), get_confident_thresholds(labels, probabilities)
    )
    found = confident_classes(labels, probabilities)
    joint = np.zeros((count, count), int)
    np.add.at(joint, (labels[found >= 0], found[found >= 0]), 1)
    # as cleanlab does, so that it can be divided
    np.fill_diagonal(joint, joint.diagonal().clip(min=1))
    np.testing.assert_array_equal(
        joint, np.asarray(compute_confident_joint(labels, probabilities, calibrate=False))
    )
    issues = find_label_issues(labels, probabilities, filter_by="confident_learning", n_jobs=1)
    assert suspicious(labels, probabilities).tolist() == issues.tolist()
    rows, scores = (
        order(labels, probabilities),
        get_self_confidence_for_each_label(labels, probabilities),
    )
    assert sorted(rows) == list(range(len(labels)))
    ranked = order_label_issues(issues, labels, probabilities, rank_by="self_confidence")
    first, others = rows[: issues.sum()], rows[issues.sum() :]
    assert scores[first].tolist() == scores[ranked].tolist()
    assert (np.diff(scores[others]) >= 0).all()
    for same in (first, others):  # of equal scores, as in the file
        assert (np.diff(same)[np.diff(scores[same]) == 0] > 0).all()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("wrong", [0.0, 0.03, 0.1])
def test_calibrate_wrong_labels(temperature: float, wrong: float) -> None:
    """Labels are drawn from probabilities, then made wrong.

    The network states the probabilities at another temperature.
    """
    draws = np.random.default_rng(3)
    logits = 3 * draws.normal(size=(6000, 5))
    true = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    right = (true.cumsum(1) > draws.random((6000, 1))).argmax(1)
    labels = (right + (draws.random(6000) < wrong) * draws.integers(1, 5, size=6000)) % 5
    stated = true**temperature / (true**temperature).sum(1, keepdims=True)
    calibrated, fraction = calibrate(labels, stated)
    assert fraction == pytest.approx((labels != right).mean(), abs=0.01)
    assert np.abs(calibrated - true).mean() < 0.02
    by_chance, of_right = expected(stated, calibrated), int(suspicious(right, stated).sum())
    assert by_chance == pytest.approx(of_right, abs=4 * np.sqrt(of_right) + 5)


def test_calibrate_worse_than_chance() -> None:
    labels, probabilities = drawn(0, 400, 2, wrong=0.9)
    assert calibrate(labels, probabilities)[1] <= 0.5


# -- the predictions of a sweep: a file in a folder, which may be a stranger's ---------------------

GOOD = "file,truth,prediction,'=a,b,fold\n'-1.png,'=a,b,0.25,0.75,0\n2.png,b,b,0.1,0.9,1\n"


@pytest.mark.parametrize(
    "text",
    [
        None,  # a link
        "",
        GOOD.partition("\n")[0] + "\n",
        GOOD.replace("0.75", "nan"),
        GOOD.replace("0.75", "1.5"),
        GOOD.replace("0.75", "much"),
        GOOD.replace("0.75,", ""),
        GOOD.replace("2.png,b", "2.png,c"),
        "file,truth,prediction,a,fold\n1.png,a,a,1.0,0\n",
        "file\n1.png\n",
        GOOD.replace("0.75", "0" * 200_000),
    ],
)
def test_read_refuses(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / ("elsewhere.csv" if text is None else "all.csv")
    path.write_text(GOOD if text is None else text)
    if text is None:
        (tmp_path / "all.csv").symlink_to(path)
    with pytest.raises(ValueError, match=r"all\.csv does not have the probability of each class"):
        read([tmp_path / "all.csv"])

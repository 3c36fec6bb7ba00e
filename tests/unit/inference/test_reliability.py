"""Scores of probabilities against scikit-learn, torchmetrics and numpy.

Their intervals are compared with a plain loop.
"""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import brier_score_loss, log_loss
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torchmetrics.functional.classification import (
    binary_calibration_error,
    multiclass_calibration_error,
)

from lockstep.inference import reliability
from lockstep.models.calibration import Calibration
from lockstep.models.predictions import Findings, FindingsCollector
from lockstep.tasks import Multilabel, Task
from tests.support.findings import findings_of, made_up
from tests.support.modules import classification

ONE_CLASS, LABELS = classification(), Multilabel(loss=nn.BCEWithLogitsLoss(reduction="none"))
NUM_CLASSES = 5
SLOPE = 0.4
ENTRY = {"slope": torch.tensor([SLOPE]), "offset": torch.zeros(1), "num_images": 120, "note": ""}


def found(
    logits: Tensor, targets: Tensor, calibration: nn.Module | None = None, task: Task = ONE_CLASS
) -> Findings:
    parts = torch.arange(len(logits)).split(64)
    return findings_of(task, calibration or nn.Identity(), logits, targets, parts)


def values(scores: dict[str, Any]) -> list[float]:
    return [scores[name]["value"] for name in reliability.SCORES]


@pytest.mark.parametrize("num_classes", [2, NUM_CLASSES])
def test_class_scores_as_scikit_learn(num_classes: int) -> None:
    logits, labels = made_up(300, num_classes)
    report = reliability.report(found(logits, labels, Calibration(ENTRY)), None, ENTRY)
    for way, slope in (("raw", 1.0), ("calibrated", float(torch.tensor(SLOPE)))):
        probabilities = (slope * logits).softmax(1)
        expected = [
            log_loss(labels, probabilities),
            (probabilities - one_hot(labels, num_classes)).square().sum(1).mean().item(),
            multiclass_calibration_error(probabilities, labels, num_classes, n_bins=15).item(),
        ]
        # torchmetrics computes in float32
        assert values(report[way]) == pytest.approx(expected, rel=1e-6)
        assert values(report[way])[:2] == pytest.approx(expected[:2], rel=1e-12)
    assert report["temperature"] == pytest.approx(1 / SLOPE)


def test_label_scores_as_scikit_learn() -> None:
    logits, _ = made_up(300, NUM_CLASSES)
    targets = (
        torch.rand(logits.shape, generator=torch.Generator().manual_seed(1))
        < (logits / 3).sigmoid()
    ).int()
    parts = {"slope": torch.full((NUM_CLASSES,), SLOPE), "offset": torch.full((NUM_CLASSES,), 0.25)}
    entry = {**parts, "num_images": 7, "note": "z: too few"}
    calibration = Calibration(entry)
    report = reliability.report(found(logits, targets, calibration, LABELS), None, entry)
    for way, outputs in (("raw", logits), ("calibrated", calibration(logits))):
        probabilities, truth = outputs.sigmoid().flatten(), targets.flatten()
        expected = [
            log_loss(truth, probabilities),
            brier_score_loss(truth, probabilities),
            binary_calibration_error(probabilities, truth, n_bins=15).item(),
        ]
        assert values(report[way]) == pytest.approx(expected, rel=1e-6)
        assert sum(report[way]["bins"]["count"]) == 300 * NUM_CLASSES


def resampled(
    units: list[NDArray[np.int64]], logits: Tensor, labels: Tensor
) -> NDArray[np.float64]:
    """Return the 95 % percentiles (2, 3) of the scores of resampled units.

    A unit is the rows of an image or of a group.
    """
    draw, scores = np.random.default_rng(3), []
    for _ in range(2000):
        rows = torch.from_numpy(
            np.concatenate([units[at] for at in draw.integers(len(units), size=len(units))])
        )
        probabilities, own = logits[rows].softmax(1), labels[rows]
        error = multiclass_calibration_error(
            probabilities, own, NUM_CLASSES, n_bins=15, validate_args=False
        )
        nll = -probabilities.gather(1, own[:, None]).log().mean()
        brier = (probabilities - one_hot(own, NUM_CLASSES)).square().sum(1).mean()
        scores.append([nll.item(), brier.item(), error.item()])
    return np.percentile(scores, [2.5, 97.5], axis=0)


@pytest.mark.parametrize("num_groups", [None, 23])
def test_intervals_as_bootstrap(num_groups: int | None) -> None:
    logits, labels = made_up(120, NUM_CLASSES)
    numbers = np.arange(120) if num_groups is None else np.arange(120) ** 2 % num_groups
    groups = None if num_groups is None else [f"patient {number}" for number in numbers]
    report = reliability.report(found(logits, labels), groups, {"note": ""})
    low, high = resampled(
        [np.flatnonzero(numbers == number) for number in np.unique(numbers)], logits, labels
    )
    twice = 2 * report["raw"]["ece"]["value"]
    low[2], high[2] = twice - high[2], twice - low[2]
    ends = [
        (report["raw"][name]["low"], report["raw"][name]["high"]) for name in reliability.SCORES
    ]
    for (start, end), *expected in zip(ends, low, high, strict=True):
        # of the quantiles of 1,000 resamples the standard error is 3 % of the width
        assert (start, end) == pytest.approx(
            tuple(expected), abs=0.15 * (expected[1] - expected[0])
        )
    assert report.get("num_groups") == (None if num_groups is None else len(np.unique(numbers)))


def test_nonfinite_outputs() -> None:
    logits, labels = made_up(300, NUM_CLASSES)
    logits[3, 1] = float("nan")
    logits[7, 0] = float("inf")
    report = reliability.report(found(logits, labels, Calibration(ENTRY)), None, ENTRY)
    assert np.isnan(report["calibrated"]["nll"]["value"])
    assert 0 < report["raw"]["ece"]["value"] < 1  # such an image has the probability 0
    assert sum(report["raw"]["bins"]["count"]) == 300


def test_ignored_classes_left_out() -> None:
    logits, labels = made_up(20, NUM_CLASSES)
    ignored = labels.clone()
    ignored[::4] = -100
    kept = found(logits, ignored)
    assert kept.indices.tolist() == [number for number in range(20) if number % 4]
    assert values(reliability.report(kept, None, {"note": ""})["raw"])[0] == pytest.approx(
        log_loss(ignored[kept.indices], logits[kept.indices].softmax(1), labels=range(NUM_CLASSES))
    )


def test_targets_without_report() -> None:
    logits, labels = made_up(20, NUM_CLASSES)
    maps = logits[..., None, None]
    others = (
        (ONE_CLASS, logits, labels.double()),
        (ONE_CLASS, maps, labels[:, None, None]),
        (LABELS, maps, maps > 0),
    )
    for task, outputs, targets in others:
        outcomes = FindingsCollector(task, nn.Identity(), NUM_CLASSES)
        outcomes.update(outputs, targets, torch.arange(20))
        assert outcomes.findings() is None

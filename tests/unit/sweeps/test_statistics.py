"""Intervals against scipy's, and against a truth that is known because it was drawn."""

import numpy as np
import pytest
from scipy import stats

from lockstep.sweeps.differences import Difference, Spread, bounded, spread

ACCURACIES = [0.9833, 0.9889, 0.9944, 0.9861, 0.9833]
NUM_DRAWS = 20_000


def test_an_interval_of_seeds_is_that_of_scipy() -> None:
    found = spread(ACCURACIES, are_folds=False)
    assert found[:3] == pytest.approx((5, np.mean(ACCURACIES), np.std(ACCURACIES, ddof=1)))
    assert found[3:] == pytest.approx(tuple(stats.ttest_1samp(ACCURACIES, 0).confidence_interval(0.95)))


def test_an_interval_of_folds_is_wider_by_their_common_training_images() -> None:
    found = spread(ACCURACIES, are_folds=True)
    error = np.std(ACCURACIES, ddof=1) * np.sqrt(1 / 5 + 1 / 4)  # 1 / 4 is test images : training images
    assert found[3:] == pytest.approx(stats.t.interval(0.95, 4, loc=np.mean(ACCURACIES), scale=error))


def test_nothing_is_said_about_the_spread_of_one_value() -> None:
    assert spread([0.9], are_folds=False) == Spread(1, 0.9, None, None, None)


@pytest.mark.parametrize(
    ("metric", "values", "is_cut"),
    [
        ("val/accuracy", [0.5945, 0.7166], True),
        ("val/f1", [0.98, 0.99], True),
        ("val/accuracy", [59.45, 71.66], False),  # of a custom metric, in percent
        ("val/loss", [0.5945, 0.7166], False),
        ("val/balanced_accuracy", [0.98, 0.99], False),
    ],
)
def test_an_interval_of_an_accuracy_holds_possible_values_alone(metric: str, values: list[float], is_cut: bool) -> None:
    found = spread(values, are_folds=False)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert high > 1
    assert bounded(found, metric, values)[3:] == pytest.approx((max(low, 0), min(high, 1)) if is_cut else (low, high))
    difference = Difference(0.5, -1.5, 1.5, (2,), "", 0.5)
    ends = (-1, 1) if is_cut else (-1.5, 1.5)
    assert bounded(difference, metric, values) == difference._replace(low=ends[0], high=ends[1])


@pytest.mark.parametrize("n", [3, 10])
@pytest.mark.parametrize("are_folds", [False, True])
def test_an_interval_holds_the_truth_95_times_in_a_hundred(n: int, are_folds: bool) -> None:
    generator = np.random.default_rng(n)
    draws = generator.normal(0.9, 0.01, (NUM_DRAWS, n))
    if are_folds:  # what two folds have in common makes their results equally correlated, by 1 / n
        draws = 0.9 + np.sqrt(1 - 1 / n) * (draws - 0.9) + generator.normal(0, 0.01 / np.sqrt(n), (NUM_DRAWS, 1))
    found = (spread(values, are_folds=are_folds) for values in draws.tolist())
    held = np.mean([low <= 0.9 <= high for *_, low, high in found if low is not None and high is not None])
    assert held == pytest.approx(0.95, abs=0.006)  # four standard errors of 20,000 draws

"""Differences and intervals against scipy's, and against the known truth of drawn data."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.stats

from lockstep.trials.differences import (
    Difference,
    Spread,
    bounded,
    holm,
    paired_test,
    spread,
    unpaired_test,
)

NUM_DRAWS = 20_000
TOLERANCE = 0.006  # four standard errors of so many draws
stats: Any = scipy.stats  # whose results pyright does not know
DRAW = np.random.default_rng(0)
FIRST, SECOND = DRAW.normal(0.90, 0.01, 12), DRAW.normal(0.91, 0.02, 12)


def found(difference: Difference) -> list[float | None]:
    return [difference.value, difference.low, difference.high, difference.p]


def paired(first: Any, second: Any) -> Difference:
    return paired_test((second - first).tolist(), are_folds=False)


@pytest.mark.parametrize(
    ("test", "oracle", "first", "second", "name", "counts"),
    [
        *(
            (paired, stats.ttest_rel, FIRST[:n], SECOND[:n], "paired t test", (n,))
            for n in (2, 5, 12)
        ),
        (
            lambda first, second: unpaired_test(first.tolist(), second.tolist()),
            partial(stats.ttest_ind, equal_var=False),
            FIRST,
            SECOND[:4],
            "Welch's t test",
            (12, 4),
        ),
    ],
)
def test_t_tests_as_scipy(
    test: Callable[..., Difference],
    oracle: Any,
    first: Any,
    second: Any,
    name: str,
    counts: tuple[int, ...],
) -> None:
    ours, result = test(first, second), oracle(second, first)
    expected = [np.mean(second) - np.mean(first), *result.confidence_interval(), result.pvalue]
    assert found(ours) == pytest.approx(expected)
    assert (ours.test, ours.counts) == (name, counts)


def test_folds_corrected_t_test() -> None:
    values = (SECOND - FIRST)[:10]
    ours = paired_test(values.tolist(), are_folds=True)
    t = np.mean(values) / (np.std(values, ddof=1) * np.sqrt(1 / 10 + 1 / 9))
    assert ours.p == pytest.approx(2 * stats.t.sf(abs(t), 9))
    assert ours.test == "corrected paired t test"


def test_holm_adjustment() -> None:
    adjusted = holm([Difference(0, 0, 0, (5,), "", p) for p in (0.03, 0.01, 0.04, 0.9)], 4)
    assert [each.p for each in adjusted] == pytest.approx([0.09, 0.04, 0.09, 0.9])


def test_zero_variance_rank_test() -> None:
    alike = paired_test([0.01, 0.98 - 0.97, 0.91 - 0.90], are_folds=False)  # up to rounding
    assert alike.p == 0.25
    exchanged = unpaired_test([0.5, 0.5], [0.6, 0.6])
    assert exchanged.p == pytest.approx(2 / 6)
    assert exchanged.test == "Mann-Whitney U test"
    assert paired_test([0.0, 0.0], are_folds=False).p == unpaired_test([0.5] * 2, [0.5] * 3).p == 1
    assert found(paired_test([0.0] * 12, are_folds=False)) == [0, None, None, 1]


@pytest.mark.parametrize("first", [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5 + 1e-17]])
def test_zero_variance_one_side(first: list[float]) -> None:
    second = [0.5, 0.6, 0.8]
    ours = unpaired_test(first, second)
    t = np.mean([value - 0.5 for value in second]) / (np.std(second, ddof=1) / np.sqrt(3))
    assert ours.p == pytest.approx(2 * stats.t.sf(t, 2))


ACCURACIES = [0.9833, 0.9889, 0.9944, 0.9861, 0.9833]


def test_seed_interval_as_scipy() -> None:
    found = spread(ACCURACIES, are_folds=False)
    assert found[:3] == pytest.approx((5, np.mean(ACCURACIES), np.std(ACCURACIES, ddof=1)))
    assert found[3:] == pytest.approx(
        tuple(stats.ttest_1samp(ACCURACIES, 0).confidence_interval(0.95))
    )


@pytest.mark.full
def test_folds_equal_settings() -> None:
    """What two folds have in common makes their results equally correlated, by 1 / n."""
    n = 3  # where the correction is largest
    generator = np.random.default_rng(n)
    draws = np.sqrt(1 - 1 / n) * generator.normal(0, 1, (NUM_DRAWS, n))
    draws += generator.normal(0, n**-0.5, (NUM_DRAWS, 1))
    is_significant, is_covered = [], []
    for values in draws.tolist():
        found = paired_test(values, are_folds=True)
        assert found.low is not None
        assert found.high is not None
        is_significant.append(found.p < 0.05)
        is_covered.append(found.low <= 0 <= found.high)
    assert np.mean(is_significant) == pytest.approx(0.05, abs=TOLERANCE)
    assert np.mean(is_covered) == pytest.approx(0.95, abs=TOLERANCE)


def test_spread_single_value() -> None:
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
def test_bounded_accuracy_interval(metric: str, values: list[float], is_cut: bool) -> None:
    found = spread(values, are_folds=False)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert high > 1
    assert bounded(found, metric, values)[3:] == pytest.approx(
        (max(low, 0), min(high, 1)) if is_cut else (low, high)
    )
    difference = Difference(0.5, -1.5, 1.5, (2,), "", 0.5)
    ends = (-1, 1) if is_cut else (-1.5, 1.5)
    assert bounded(difference, metric, values) == difference._replace(low=ends[0], high=ends[1])

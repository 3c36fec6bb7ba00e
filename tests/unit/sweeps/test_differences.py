"""Differences and intervals against scipy's, and against a truth that is known because it was drawn."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import scipy.stats

from lockstep.trials.differences import Difference, Spread, bounded, holm, paired_test, spread, unpaired_test, words

stats: Any = scipy.stats  # whose results pyright does not know
NUM_DRAWS = 20_000
FEW_DRAWS = 2_000  # of tests that take a millisecond each
DRAW = np.random.default_rng(0)
FIRST, SECOND = DRAW.normal(0.90, 0.01, 12), DRAW.normal(0.91, 0.02, 12)


def found(difference: Difference) -> list[float | None]:
    return [difference.value, difference.low, difference.high, difference.p]


@pytest.mark.parametrize("n", [2, 5, 12])
def test_pairs_are_tested_by_the_paired_t_test_of_scipy(n: int) -> None:
    result = stats.ttest_rel(SECOND[:n], FIRST[:n])
    ours = paired_test((SECOND - FIRST)[:n].tolist(), are_folds=False)
    expected = [np.mean((SECOND - FIRST)[:n]), *result.confidence_interval(), result.pvalue]
    assert found(ours) == pytest.approx(expected)
    assert (ours.test, ours.counts) == ("paired t test", (n,))


def test_folds_are_tested_with_the_variance_that_their_common_images_add() -> None:
    values = (SECOND - FIRST)[:10]
    ours = paired_test(values.tolist(), are_folds=True)
    t = np.mean(values) / (np.std(values, ddof=1) * np.sqrt(1 / 10 + 1 / 9))
    assert ours.p == pytest.approx(2 * stats.t.sf(abs(t), 9))
    assert ours.test == "corrected paired t test"


def test_results_without_common_seeds_are_tested_by_welch() -> None:
    result = stats.ttest_ind(SECOND[:4], FIRST, equal_var=False)
    ours = unpaired_test(FIRST.tolist(), SECOND[:4].tolist())
    expected = [np.mean(SECOND[:4]) - np.mean(FIRST), *result.confidence_interval(), result.pvalue]
    assert found(ours) == pytest.approx(expected)
    assert (ours.test, ours.counts) == ("Welch's t test", (12, 4))


def rates(differences: Iterable[Difference], truth: float = 0.0) -> tuple[float, float]:
    """How often p is below 0.05, and how often the interval holds the truth."""
    pairs = [
        (each.p < 0.05, each.low is None or each.high is None or each.low <= truth <= each.high) for each in differences
    ]
    return float(np.mean([is_low for is_low, _ in pairs])), float(np.mean([is_held for _, is_held in pairs]))


FIVE_OF_A_HUNDRED = pytest.approx((0.05, 0.95), abs=0.006)  # four standard errors of 20,000 draws
ROUGHLY_FIVE = pytest.approx((0.05, 0.95), abs=0.02)  # of 2,000 draws


@pytest.mark.parametrize("n", [5, *(pytest.param(n, marks=pytest.mark.full) for n in (3, 15))])
def test_seeds_of_equal_settings_differ_five_times_in_a_hundred(n: int) -> None:
    draws = np.random.default_rng(100 + n).normal(0, 0.01, (NUM_DRAWS, n)).tolist()
    assert rates(paired_test(values, are_folds=False) for values in draws) == FIVE_OF_A_HUNDRED


@pytest.mark.parametrize("n", [5, pytest.param(10, marks=pytest.mark.full)])
def test_folds_of_equal_settings_differ_five_times_in_a_hundred(n: int) -> None:
    generator = np.random.default_rng(n)  # what two folds have in common makes them equally correlated, by 1 / n
    draws = np.sqrt(1 - 1 / n) * generator.normal(0, 1, (NUM_DRAWS, n)) + generator.normal(0, n**-0.5, (NUM_DRAWS, 1))
    assert rates(paired_test(values, are_folds=True) for values in draws.tolist()) == FIVE_OF_A_HUNDRED


def test_equal_settings_without_common_seeds_differ_five_times_in_a_hundred() -> None:
    first, second = DRAW.normal(0, 1, (FEW_DRAWS, 5)).tolist(), DRAW.normal(0, 2, (FEW_DRAWS, 8)).tolist()
    assert rates(map(unpaired_test, first, second)) == ROUGHLY_FIVE


@pytest.mark.full
@pytest.mark.parametrize("n", [2, 10])
def test_accuracies_on_few_images_seem_to_differ_at_most_as_often(n: int) -> None:
    first, second = DRAW.binomial(100, 0.98, (2, FEW_DRAWS, n)) / 100
    for differences in (
        (paired_test(values, are_folds=False) for values in (second - first).tolist()),
        map(unpaired_test, first.tolist(), second.tolist()),
    ):
        low, held = rates(differences)
        assert low < 0.07
        assert held > 0.93


@pytest.mark.full
def test_the_best_of_equal_settings_is_rarely_called_better_than_any_other() -> None:
    draws = DRAW.normal(0, 1, (NUM_DRAWS // 4, 5, 5))
    for num_tests, least, most in ((4, 0.06, 0.1), (10, 0.02, 0.05)):  # against each other setting, and of all pairs
        found = [
            holm([paired_test((other - best).tolist(), are_folds=False) for other in others], num_tests)
            for best, *others in (settings[np.argsort(-settings.mean(1))] for settings in draws)
        ]
        assert least < np.mean([any(each.p < 0.05 for each in differences) for differences in found]) < most


def test_p_is_adjusted_by_holm() -> None:
    adjusted = holm([Difference(0, 0, 0, (5,), "", p) for p in (0.03, 0.01, 0.04, 0.9)], 4)
    assert [each.p for each in adjusted] == pytest.approx([0.09, 0.04, 0.09, 0.9])


@pytest.mark.parametrize(("is_max", "word"), [(True, "worse"), (False, "better"), (None, "lower")])
def test_words(is_max: bool | None, word: str) -> None:
    difference = Difference(-0.004, -0.007, -0.001, (5,), "paired t test", 0.021)
    expected = (
        f"B is 0.0040 {word} than A (0.0010 to 0.0070, 5 seeds, paired t test, p = 0.021): unlikely to be chance."
    )
    assert words(difference, "B", "seeds", is_max=is_max) == expected


def test_without_variation_p_is_that_of_ranks() -> None:
    alike = paired_test([0.01, 0.98 - 0.97, 0.91 - 0.90], are_folds=False)  # up to rounding
    assert words(alike, "B", "seeds", is_max=True) == (
        "B is 0.0100 better than A (3 seeds, Wilcoxon signed-rank test, p = 0.25): may be chance."
    )
    exchanged = unpaired_test([0.5, 0.5], [0.6, 0.6])
    assert exchanged.p == pytest.approx(2 / 6)
    assert exchanged.test == "Mann-Whitney U test"
    assert paired_test([0.0, 0.0], are_folds=False).p == unpaired_test([0.5] * 2, [0.5] * 3).p == 1
    assert found(paired_test([0.0] * 12, are_folds=False)) == [0, None, None, 1]


@pytest.mark.parametrize("first", [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5 + 1e-17]])
def test_one_side_without_variation_is_tested_by_welch(first: list[float]) -> None:
    second = [0.5, 0.6, 0.8]
    ours = unpaired_test(first, second)
    t = np.mean([value - 0.5 for value in second]) / (np.std(second, ddof=1) / np.sqrt(3))
    assert ours.p == pytest.approx(2 * stats.t.sf(t, 2))


ACCURACIES = [0.9833, 0.9889, 0.9944, 0.9861, 0.9833]


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

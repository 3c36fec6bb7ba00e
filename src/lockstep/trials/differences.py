"""How far results spread, how far two settings differ, and how often chance alone would do the same."""

import math
import statistics
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from scipy import stats

from lockstep.system.terminal import measure

UNLIKELY = 0.05
ROUNDING = 1e-9  # of a difference: values that deviate less do not vary
FRACTIONS = ("accuracy", "average_precision", "f1")  # metrics in conf/ that are from 0 to 1


class Spread(NamedTuple):
    """Mean, standard deviation (with n - 1) and 95 % interval of the mean; the last three are None for n = 1."""

    n: int
    mean: float
    deviation: float | None
    low: float | None
    high: float | None


class Difference(NamedTuple):
    """The second minus the first, its 95 % interval and two-sided p. `counts` is that of the pairs, or of both."""

    value: float
    low: float | None
    high: float | None
    counts: tuple[int, ...]
    test: str
    p: float


Found = TypeVar("Found", Spread, Difference)


def bounded(found: Found, metric: str, values: Iterable[float]) -> Found:
    """Cut the interval to what is possible: 0 to 1 for a fraction, -1 to 1 for a difference of two. Others are kept.

    It holds the truth as often as before. `values` are the results: of a custom metric they may be
    in percent.
    """
    is_fraction = metric.rpartition("/")[2] in FRACTIONS and all(
        0 <= value <= 1 for value in values
    )
    if found.low is None or found.high is None or not is_fraction:
        return found
    return found._replace(
        low=max(found.low, -1.0 if isinstance(found, Difference) else 0.0),
        high=min(found.high, 1.0),
    )


def spread(values: Sequence[float], *, are_folds: bool) -> Spread:
    """Return the spread of at least one value of seeds or, if `are_folds`, of all folds of a dataset.

    The interval is Student's t. Two of n folds share most of their training images, so their
    results are correlated by about 1/n (test images : all images), and the variance of the mean is
    deviation^2 (1/n + 1/(n - 1)): the corrected resampled t test of Nadeau and Bengio, Inference
    for the generalization error, Machine Learning 52 (2003).
    """
    n, mean = len(values), statistics.fmean(values)
    if n == 1:
        return Spread(n, mean, None, None, None)
    deviation = statistics.stdev(values)
    error = deviation * math.sqrt(1 / n + (1 / (n - 1) if are_folds else 0))
    half = float(stats.t.ppf(0.975, n - 1)) * error
    return Spread(n, mean, deviation, mean - half, mean + half)


def paired_test(values: Sequence[float], *, are_folds: bool) -> Difference:
    """Test the differences of at least two pairs of equal seeds or, if `are_folds`, of equal folds.

    Where the differences do not vary, as of accuracies on few images, t would be infinite: the test
    is Wilcoxon's.
    """
    n, mean, deviation, low, high = spread(values, are_folds=are_folds)
    assert deviation is not None  # of two values
    assert high is not None
    if deviation <= ROUNDING * abs(mean):
        ranked: Any = stats.wilcoxon(values, zero_method="zsplit", method="exact")
        return Difference(mean, None, None, (n,), "Wilcoxon signed-rank test", float(ranked.pvalue))
    t = mean / (high - mean) * stats.t.ppf(0.975, n - 1)
    test = "corrected paired t test" if are_folds else "paired t test"
    return Difference(mean, low, high, (n,), test, float(2 * stats.t.sf(abs(t), n - 1)))


def unpaired_test(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Test the difference of two means, of at least two values each, by Welch's t test.

    Where neither side varies, t would be infinite: the test is that of Mann and Whitney.
    """
    counts, value = (len(first), len(second)), statistics.fmean(second) - statistics.fmean(first)
    if max(statistics.stdev(first), statistics.stdev(second)) <= ROUNDING * abs(value):
        p = float(stats.mannwhitneyu(first, second, method="exact").pvalue)
        return Difference(value, None, None, counts, "Mann-Whitney U test", p)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # one side may not vary
        result: Any = stats.ttest_ind(second, first, equal_var=False)
    low, high = map(float, result.confidence_interval())
    return Difference(value, low, high, counts, "Welch's t test", float(result.pvalue))


def holm(found: Sequence[Difference], num_tests: int) -> list[Difference]:
    """Adjust p of differences that were chosen from `num_tests`, by Holm's method."""
    adjusted, highest = list(found), 0.0
    for rank, at in enumerate(sorted(range(len(found)), key=lambda at: found[at].p)):
        highest = max(highest, min(1.0, found[at].p * (num_tests - rank)))
        adjusted[at] = found[at]._replace(p=highest)
    return adjusted


def words(found: Difference, second: str, over: str, *, is_max: bool | None) -> str:
    """Say how `second` differs from A; `is_max` is None if neither direction is better."""
    sign = 1 if found.value >= 0 else -1
    kind = (("higher", "lower") if is_max is None else ("better", "worse"))[
        (sign == 1) == (is_max is False)
    ]
    form = measure if abs(found.value) < 0.001 else "{:.4f}".format  # ends as long as the value
    ends = [form(sign * end) for end in (found.low, found.high) if end is not None][::sign]
    count = f"{' and '.join(f'{count:,}' for count in found.counts)} {over}"
    p = f"p = {found.p:.2g}" if found.p >= 1e-4 else "p < 0.0001"
    facts = ", ".join(filter(None, (" to ".join(ends), count, found.test, p)))
    # up to rounding
    amount = f"{measure(abs(found.value))} {kind} than" if abs(found.value) > 1e-12 else "equal to"
    verdict = "unlikely to be chance" if found.p < UNLIKELY else "may be chance"
    return f"{second} is {amount} A ({facts}): {verdict}."

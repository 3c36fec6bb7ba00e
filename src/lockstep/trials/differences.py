"""Statistics of results: their spread, and differences of two settings.

The tests estimate how often chance alone would produce such a difference.
"""

import math
import statistics
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from scipy import stats

from lockstep.system.terminal import measure

UNLIKELY = 0.05
ROUNDING = 1e-9  # Values that deviate less than this fraction of the difference are constant.
FRACTIONS = ("accuracy", "average_precision", "f1")  # These metrics in conf/ are between 0 and 1.


class Spread(NamedTuple):
    """Mean, standard deviation (with n - 1) and 95 % interval of the mean.

    The last three are None for n = 1.
    """

    n: int
    mean: float
    deviation: float | None
    low: float | None
    high: float | None


class Difference(NamedTuple):
    """The second result minus the first, its 95 % interval and two-sided p.

    `counts` is the number of pairs, or the number of results of both.
    """

    value: float
    low: float | None
    high: float | None
    counts: tuple[int, ...]
    test: str
    p: float


Found = TypeVar("Found", Spread, Difference)


def bounded(estimate: Found, metric: str, values: Iterable[float]) -> Found:
    """Clip the interval to possible values.

    They are 0 to 1 for a fraction, and -1 to 1 for a difference of two fractions. Other intervals
    are unchanged. Clipping does not change how often an interval contains the
    true value. `values` are the
    results, because those of a custom metric may be in percent.
    """
    is_fraction = metric.rpartition("/")[2] in FRACTIONS and all(
        0 <= value <= 1 for value in values
    )
    if estimate.low is None or estimate.high is None or not is_fraction:
        return estimate
    return estimate._replace(
        low=max(estimate.low, -1.0 if isinstance(estimate, Difference) else 0.0),
        high=min(estimate.high, 1.0),
    )


def spread(values: Sequence[float], *, are_folds: bool) -> Spread:
    """Return the spread of at least one value of seeds, or of all folds of a dataset.

    The values are those of folds if `are_folds`. The interval is Student's t. Two of n folds share
    most of their training images, so their results are correlated by about 1/n, the ratio of test
    images to all images. The variance of the mean is deviation^2 (1/n + 1/(n - 1)). This is the
    corrected resampled t test of Nadeau and Bengio, Inference for the generalization error, Machine
    Learning 52 (2003).
    """
    n, mean = len(values), statistics.fmean(values)
    if n == 1:
        return Spread(n, mean, None, None, None)
    deviation = statistics.stdev(values)
    error = deviation * math.sqrt(1 / n + (1 / (n - 1) if are_folds else 0))
    half_width = float(stats.t.ppf(0.975, n - 1)) * error
    return Spread(n, mean, deviation, mean - half_width, mean + half_width)


def paired_test(values: Sequence[float], *, are_folds: bool) -> Difference:
    """Test the differences of at least two pairs of equal seeds or, if `are_folds`, of equal folds.

    If the differences do not vary, as for accuracies on few images, t would be infinite. The test
    is then Wilcoxon's.
    """
    n, mean, deviation, low, high = spread(values, are_folds=are_folds)
    assert deviation is not None  # There are at least two values.
    assert high is not None
    if deviation <= ROUNDING * abs(mean):
        result: Any = stats.wilcoxon(values, zero_method="zsplit", method="exact")
        return Difference(mean, None, None, (n,), "Wilcoxon signed-rank test", float(result.pvalue))
    t = mean / (high - mean) * stats.t.ppf(0.975, n - 1)
    test = "corrected paired t test" if are_folds else "paired t test"
    return Difference(mean, low, high, (n,), test, float(2 * stats.t.sf(abs(t), n - 1)))


def unpaired_test(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Test the difference of two means, of at least two values each, by Welch's t test.

    If neither side varies, t would be infinite. The test is then that of Mann and Whitney.
    """
    counts, value = (len(first), len(second)), statistics.fmean(second) - statistics.fmean(first)
    if max(statistics.stdev(first), statistics.stdev(second)) <= ROUNDING * abs(value):
        p = float(stats.mannwhitneyu(first, second, method="exact").pvalue)
        return Difference(value, None, None, counts, "Mann-Whitney U test", p)
    # One side may not vary.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        result: Any = stats.ttest_ind(second, first, equal_var=False)
    low, high = map(float, result.confidence_interval())
    return Difference(value, low, high, counts, "Welch's t test", float(result.pvalue))


def holm(differences: Sequence[Difference], num_tests: int) -> list[Difference]:
    """Adjust p of differences that were chosen from `num_tests`, by Holm's method."""
    adjusted_differences, max_p = list(differences), 0.0
    for rank, at in enumerate(sorted(range(len(differences)), key=lambda at: differences[at].p)):
        max_p = max(max_p, min(1.0, differences[at].p * (num_tests - rank)))
        adjusted_differences[at] = differences[at]._replace(p=max_p)
    return adjusted_differences


def describe_difference(
    difference: Difference, second: str, over: str, *, is_max: bool | None
) -> str:
    """Describe how `second` differs from A.

    `is_max` is None if neither direction is better.
    """
    sign = 1 if difference.value >= 0 else -1
    kind = (("higher", "lower") if is_max is None else ("better", "worse"))[
        (sign == 1) == (is_max is False)
    ]
    # The ends have as many digits as the value.
    form = measure if abs(difference.value) < 0.001 else "{:.4f}".format
    ends = [form(sign * end) for end in (difference.low, difference.high) if end is not None][
        ::sign
    ]
    count = f"{' and '.join(f'{count:,}' for count in difference.counts)} {over}"
    p = f"p = {difference.p:.2g}" if difference.p >= 1e-4 else "p < 0.0001"
    facts = ", ".join(filter(None, (" to ".join(ends), count, difference.test, p)))
    # Smaller differences are rounding errors.
    amount = (
        f"{measure(abs(difference.value))} {kind} than"
        if abs(difference.value) > 1e-12
        else "equal to"
    )
    verdict = "unlikely to be chance" if difference.p < UNLIKELY else "may be chance"
    return f"{second} is {amount} A ({facts}): {verdict}."

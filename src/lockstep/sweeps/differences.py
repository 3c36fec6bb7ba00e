"""How far results spread, how far two settings or networks differ, and how often chance alone would do the same."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from lockstep.system.terminal import measure

RANKED_FROM = 10  # pairs: one diverged training spoils a t test, and ranks of five pairs are never unlikely enough
UNLIKELY = 0.05
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

    It holds the truth as often as before. `values` are the results: of a custom metric they may be in percent.
    """
    is_fraction = metric.rpartition("/")[2] in FRACTIONS and all(0 <= value <= 1 for value in values)
    if found.low is None or found.high is None or not is_fraction:
        return found
    return found._replace(low=max(found.low, -1.0 if isinstance(found, Difference) else 0.0), high=min(found.high, 1.0))


def spread(values: Sequence[float], *, are_folds: bool) -> Spread:
    """Return the spread of at least one value of seeds or, if `are_folds`, of all folds of a dataset.

    The interval is Student's t. Two of n folds share most of their training images, so their results are correlated by
    about 1/n (test images : all images), and the variance of the mean is deviation^2 (1/n + 1/(n - 1)): the corrected
    resampled t test of Nadeau and Bengio, Inference for the generalization error, Machine Learning 52 (2003).
    """
    n, mean = len(values), statistics.fmean(values)
    if n == 1:
        return Spread(n, mean, None, None, None)
    from scipy.special import stdtrit  # takes 0.2 s: not for a sweep without repetitions

    deviation = statistics.stdev(values)
    half = float(stdtrit(n - 1, 0.975)) * deviation * math.sqrt(1 / n + (1 / (n - 1) if are_folds else 0))
    return Spread(n, mean, deviation, mean - half, mean + half)


def paired_test(values: Sequence[float], *, are_folds: bool, num_tests: int = 1) -> Difference:
    """Test the differences of at least two pairs of equal seeds or, if `are_folds`, of equal folds.

    Ranks are used if the least p that they can have is unlikely as one of `num_tests`, too.
    """
    n = len(values)
    if n >= RANKED_FROM and num_tests * 2 ** (1 - n) < UNLIKELY and not are_folds:
        return _signed_ranks(values)
    _, mean, _, _, high = spread(values, are_folds=are_folds)
    assert high is not None  # of two values
    test = "corrected paired t test" if are_folds else "paired t test"
    return _student(mean, high - mean, n - 1, test, (n,), 2**n)


def unpaired_test(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Test the difference of two means, of at least two values each, by Welch's t test."""
    from scipy.special import stdtrit

    counts = len(first), len(second)
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    freedom = sum(parts) ** 2 / (sum(part**2 / (n - 1) for part, n in zip(parts, counts, strict=True)) or 1)
    half = stdtrit(freedom, 0.975) * math.sqrt(sum(parts)) if freedom else 0.0
    value, ways = statistics.fmean(second) - statistics.fmean(first), math.comb(sum(counts), len(first))
    return _student(value, half, freedom, "Welch's t test", counts, ways)


def _student(value: float, half: float, freedom: float, test: str, counts: tuple[int, ...], ways: int) -> Difference:
    """Return p of a mean whose interval is `value` ± `half`.

    Without variation, as of accuracies on few images, t is infinite, and p is that of `ways` to exchange the sides.
    """
    from scipy.special import stdtr, stdtrit  # takes 0.2 s

    if half <= 1e-9 * abs(value):  # up to rounding
        return Difference(value, None, None, counts, "permutation test", min(1.0, 2 / ways) if value else 1.0)
    p = 2 * stdtr(freedom, -abs(value) / half * stdtrit(freedom, 0.975))
    return Difference(value, float(value - half), float(value + half), counts, test, float(p))


def _signed_ranks(values: Sequence[float]) -> Difference:
    """Test by Wilcoxon's signed ranks, with the Hodges-Lehmann estimate and the interval of what is not rejected.

    The statistic is the number of positive means of any two values (Tukey, 1949). One of zero counts half: with ties p
    is never too small.
    """
    import numpy as np

    means = np.sort(np.add.outer(values, values)[np.triu_indices(len(values))] / 2)
    chances = np.ones(1)  # of each value of the statistic
    for rank in range(1, len(values) + 1):
        chances = np.convolve(chances, [0.5, *[0.0] * (rank - 1), 0.5])
    at_most = np.cumsum(chances)
    positive = np.sum(means > 0) + np.sum(means == 0) / 2
    p = min(1.0, 2 * at_most[math.ceil(min(positive, len(means) - positive))])
    cut = np.searchsorted(at_most, 0.025, side="right")
    value, low, high = (float(number) for number in (np.median(means), means[cut - 1], means[-cut]))
    return Difference(value, low, high, (len(values),), "Wilcoxon signed-rank test", float(p))


def image_test(only_first: int, only_second: int, num_images: int) -> Difference:
    """Test two accuracies on the same images by the numbers that only one network has right: McNemar, exact.

    The interval adds half an image to each of the four cells: Agresti and Min, Statistics in Medicine 24 (2005).
    """
    from scipy.special import bdtr, ndtri

    surplus, either, n = only_second - only_first, only_first + only_second, num_images + 2
    p = min(1.0, 2 * float(bdtr(min(only_first, only_second), either, 0.5)))
    half = float(ndtri(0.975)) * math.sqrt((either + 1) / n - (surplus / n) ** 2) / math.sqrt(n)
    low, high = surplus / n - half, surplus / n + half
    return bounded(Difference(surplus / num_images, low, high, (num_images,), "exact McNemar test", p), "accuracy", ())


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
    kind = (("higher", "lower") if is_max is None else ("better", "worse"))[(sign == 1) == (is_max is False)]
    form = measure if abs(found.value) < 0.001 else "{:.4f}".format  # ends as long as the value
    ends = [form(sign * end) for end in (found.low, found.high) if end is not None][::sign]
    count = f"{' and '.join(f'{count:,}' for count in found.counts)} {over}"
    p = f"p = {found.p:.2g}" if found.p >= 1e-4 else "p < 0.0001"
    facts = ", ".join(filter(None, (" to ".join(ends), count, found.test, p)))
    amount = f"{measure(abs(found.value))} {kind} than" if abs(found.value) > 1e-12 else "equal to"  # up to rounding
    verdict = "unlikely to be chance" if found.p < UNLIKELY else "may be chance"
    return f"{second} is {amount} A ({facts}): {verdict}."

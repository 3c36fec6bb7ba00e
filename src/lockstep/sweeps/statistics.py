"""A setting and its repetitions: the mean over seeds or folds, and how far it may be from that of infinitely many."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from lockstep.system.wording import plural


class Spread(NamedTuple):
    """Mean, standard deviation (with n - 1) and 95 % interval of the mean; the last three are None for n = 1."""

    n: int
    mean: float
    deviation: float | None
    low: float | None
    high: float | None


class Group(NamedTuple):
    """A setting: trials that differ only in seed and fold, with the spread of the objective over them.

    `trials` are those of `num_trials` that are finished and have a value. Seeds of a fold are averaged, and count as
    one of `n`; a seed that was trained twice does, too. `tests` has the spread of the test results that all of
    `trials` have.
    """

    settings: dict[str, str]
    trials: tuple[int, ...]
    num_trials: int
    over: str  # seeds or folds
    n: int
    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    tests: dict[str, dict[str, float | None]]

    @property
    def is_complete(self) -> bool:
        return len(self.trials) == self.num_trials

    @property
    def repetitions(self) -> str:
        """`5 seeds`, `4 seeds, 1 missing`, or `5 folds of 3 seeds`."""
        count = plural(self.n, self.over.removesuffix("s"))
        if not self.is_complete:
            return f"{count}, {self.num_trials - len(self.trials)} missing"
        is_whole = self.over == "seeds" or self.n == self.num_trials
        return count if is_whole else f"{count} of {self.num_trials / self.n:g} seeds"


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

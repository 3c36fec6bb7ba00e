"""Answers whose error rate is kept: by simulation, and from a checkpoint or the file of all folds."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lockstep.config.errors import ConfigError
from lockstep.inference import selective

NUM_DRAWS = 2000
MOST = selective.DOUBT + 3 * math.sqrt(selective.DOUBT * (1 - selective.DOUBT) / NUM_DRAWS)
# error rates of images in the order of their confidence, the most confident first; few levels are many ties
LEVELS = np.linspace(0, 1, 100_000)
HARD = np.full(100_000, 0.0501)  # every answer is one too many
STEEP = 0.3 * LEVELS**3  # 5 % at 87 % of the images
WORSE = np.where(LEVELS < 0.3, 0.049, np.where(LEVELS < 0.6, 0.06, 0.03))  # not the surest are the best
TIED = np.array([0.02, 0.02, 0.21, 0.4, 0.6])  # 5 % and then 8.3 %
ALIKE = np.array([0.0501])


def draws(rates: NDArray[Any], n: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return confidences and is_right, (NUM_DRAWS, n) each."""
    random = np.random.default_rng(seed)
    levels = random.integers(len(rates), size=(NUM_DRAWS, n))
    return (1 - levels / len(rates)).astype(np.float32), random.random(levels.shape) >= rates[levels]


def num_broken(rates: NDArray[Any], n: int, max_error: float, seed: int = 0) -> tuple[float, float]:
    """Return the fractions of draws whose answers have a larger error rate than `max_error`, and that answer any."""
    true = np.cumsum(rates) / np.arange(1, len(rates) + 1)
    broken = answered = 0
    for confidences, is_right in zip(*draws(rates, n, seed), strict=True):
        rule = selective.choose(confidences, is_right, max_error)
        if rule is not None:
            answered += 1
            last = math.ceil(round((1 - rule.threshold) * len(rates), 3)) - 1  # the last level above the threshold
            broken += bool(true[last] > max_error)
    return broken / NUM_DRAWS, answered / NUM_DRAWS


SETTINGS: dict[str, tuple[NDArray[Any], int, float]] = {
    "hard": (HARD, 180, 0.05),
    "hard, few images": (HARD, 93, 0.05),
    "fewer": (HARD, 60, 0.05),
    "hard, many": (HARD, 1000, 0.05),
    "steep": (STEEP, 180, 0.05),
    "steep, many": (STEEP, 1000, 0.05),
    "small rate": (STEEP / 3, 400, 0.0167),
    "not monotone": (WORSE, 300, 0.05),
    "tied": (TIED, 180, 0.05),
    "tied, many": (TIED, 1000, 0.05),
    "all alike": (ALIKE, 180, 0.05),
    "two alike": (np.array([0.04, 0.0603]), 181, 0.05),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_error_rate_of_the_answers_exceeds_the_promised_one_in_five_of_a_hundred_draws(setting: str) -> None:
    broken, _ = num_broken(*SETTINGS[setting])
    assert broken <= MOST


@pytest.mark.parametrize("setting", ["hard", "steep", "tied", "all alike"])
def test_an_estimate_in_place_of_the_bound_would_break_the_promise(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    estimate: Callable[[Any, Any, float], Any] = lambda wrong, n, rate: np.where(wrong / n <= rate, 0, 1)  # noqa: E731
    monkeypatch.setattr("scipy.special.bdtr", estimate)
    broken, _ = num_broken(*SETTINGS[setting])
    assert broken > 0.15

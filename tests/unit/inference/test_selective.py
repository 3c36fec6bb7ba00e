"""Answers whose error rate is kept: by simulation, and from a checkpoint or the file of all folds."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest

from lockstep.config.errors import ConfigError
from lockstep.inference import selective
from lockstep.inference.selective import Rule
from tests.support.composed import config_of

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


@pytest.mark.parametrize("setting", ["hard", "steep", "all alike"])
def test_an_estimate_in_place_of_the_bound_would_break_the_promise(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    def estimate(wrong: Any, n: Any, rate: float) -> Any:
        return np.where(wrong / n <= rate, 0, 1)

    monkeypatch.setattr("scipy.special.bdtr", estimate)
    broken, _ = num_broken(*SETTINGS[setting])
    assert broken > 0.15


def test_most_images_are_answered_and_equal_confidences_together() -> None:
    confidences = np.linspace(1, 0.01, 200)
    is_right = np.arange(200) < 160
    rule = selective.choose(confidences, is_right, 0.05)
    assert rule is not None
    # 93 images pass with an error; of 50 shares from there to all, the next one has 165 images and 5 errors
    assert (rule.num_images, rule.answered, rule.wrong) == (200, 163, 3)
    assert binomtest(1, 93, 0.05, "less").pvalue < 0.05 < binomtest(1, 92, 0.05, "less").pvalue
    assert binomtest(3, 163, 0.05, "less").pvalue < 0.05 < binomtest(5, 165, 0.05, "less").pvalue
    assert rule.threshold == confidences[163]
    assert selective.choose(confidences, np.ones(200, bool), 0.05) == Rule(0.05, 0.0, 200, 200, 0)
    alike = np.where(np.arange(200) < 180, 1.0, confidences)
    assert selective.choose(alike, is_right, 0.05) is None  # not the 160 of these 180 that are right
    rule = selective.choose(alike, np.arange(200) < 180, 0.05)
    assert rule is not None
    assert (rule.answered, rule.threshold) == (183, confidences[183])


@pytest.mark.parametrize(("n", "is_kept"), [(0, False), (58, False), (59, True)])
def test_few_images_without_an_error_are_enough_from_59_on(n: int, is_kept: bool) -> None:
    rule = selective.choose(np.linspace(1, 0.5, n), np.ones(n, bool), 0.05)
    assert (rule is not None) == is_kept  # 0.95 ** 59 < 0.05


def test_an_image_at_the_threshold_or_without_a_number_has_no_answer() -> None:
    rule = Rule(0.05, 0.75, 100, 90, 1)
    predictions = torch.tensor([[0.75, 0.25], [0.2499, 0.7501], [math.nan, math.nan]])
    assert rule.answers(predictions).tolist() == [-1, 1, -1]
    assert rule.answers(torch.tensor([[0.75 + 1e-12, 0.25 - 1e-12]], dtype=torch.float64)).tolist() == [-1]
    assert Rule(0.05, 0.0, 100, 100, 1).answers(predictions).tolist() == [0, 1, -1]


def rows(n: int, wrong: int) -> dict[str, torch.Tensor]:
    return {"confidences": torch.linspace(1, 0.5, n), "is_right": torch.arange(n) < n - wrong}


def write(path: Path, names: tuple[str, ...] = ("a", "b"), **parts: Any) -> Path:
    calibration = {"slope": torch.ones(1), "offset": torch.zeros(1), "num_images": 200, "note": "", **parts}
    torch.save({"image_format": {"class_names": list(names)}, **({"calibration": calibration} if parts else {})}, path)
    return path


def test_a_checkpoint_has_a_rule_by_its_validation_images_and_the_share_of_the_test_images(tmp_path: Path) -> None:
    path = write(tmp_path / "best.ckpt", val=rows(200, 20), test=rows(100, 30))
    assert selective.rule_of(path, config_of(), None, None) is None
    rule = selective.rule_of(path, config_of(), 0.05, None)
    assert rule is not None
    val = rows(200, 20)
    plain = selective.choose(val["confidences"].numpy(), val["is_right"].numpy(), 0.05)
    assert rule._replace(text="") == plain
    bound = binomtest(3, 183, alternative="less").proportion_ci(0.95, "exact").high
    assert rule.text.splitlines() == [
        "Answers where the probability is above 0.540201, else unknown",
        f"91.5% of 200 validation images are answered, 3 wrong: exact upper bound {bound:.2%}",
        "Error rate of the answers: at most 5% with 95% confidence, for images like these only",
        "92.0% of the test images are answered, 22 of 92 wrong",
    ]


def test_the_rows_of_all_folds_are_used_where_there_are_some(tmp_path: Path) -> None:
    path = write(tmp_path / "best.ckpt", val=rows(20, 0), test=rows(20, 0))
    lines = [f"{number}.png,b,b,{number / 2e3:.6f},{1 - number / 2e3:.6f},{number % 5}" for number in range(400)]
    lines[350:] = [line.replace(",b,b,", ",a,b,") for line in lines[350:]]
    (tmp_path / "out_of_fold.csv").write_text("\n".join(["file,truth,prediction,a,b,fold", *lines]) + "\n")
    rule = selective.rule_of(path, config_of(), 0.05, str(tmp_path / "out_of_fold.csv"))
    assert rule is not None
    assert (rule.num_images, rule.answered, rule.wrong) == (400, 356, 6)
    assert "400 images in " in rule.text
    assert "test images" not in rule.text
    # 0.8220004 is 0.822000 in the file, as the first image that was not answered there
    assert rule.threshold == pytest.approx(0.8220005, abs=1e-9)


@pytest.mark.parametrize(
    ("parts", "names", "settings", "error"),
    [
        ({}, ("a", "b"), (), "--max-error 0.05 needs calibrated probabilities of validation images, which "),
        (
            {"test": rows(9, 0)},
            ("a", "b"),
            (),
            "lacks: use the best checkpoint of a classification that was trained to its end",
        ),
        ({"val": rows(200, 0)}, ("a", "unknown"), (), "--max-error 0.05 answers unknown, which is a class of this run"),
        ({"val": rows(200, 0)}, ("a", "b"), ("calibrate=false",), "calibrate=false leaves out what --max-error 0.05 n"),
        (
            {"val": rows(50, 0)},
            ("a", "b"),
            (),
            "on 50 validation images: train with more validation images, or use 0.0",
        ),
        ({"val": rows(9, 9)}, ("a", "b"), (), "on 9 validation images: train with more validation images"),
    ],
)
def test_what_has_no_rule_is_refused_in_a_line_with_a_fix(
    tmp_path: Path, parts: dict[str, Any], names: tuple[str, ...], settings: tuple[str, ...], error: str
) -> None:
    path = write(tmp_path / "best.ckpt", names, **parts)
    with pytest.raises(ConfigError) as raised:
        selective.rule_of(path, config_of(*settings), 0.05, None)
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_smallest_rate_of_a_refusal_is_kept_and_no_smaller_one(tmp_path: Path) -> None:
    path = write(
        tmp_path / "best.ckpt", val={"confidences": torch.linspace(1, 0.5, 200), "is_right": torch.arange(200) % 10 > 0}
    )
    with pytest.raises(ConfigError, match=r"or use 0\.\d+$") as raised:
        selective.rule_of(path, config_of(), 0.05, None)
    least = float(str(raised.value).rpartition(" ")[2])
    assert selective.rule_of(path, config_of(), least, None) is not None
    with pytest.raises(ConfigError):
        selective.rule_of(path, config_of(), least - 0.001, None)

"""Answers only where a network errs seldom enough: a threshold on the probability of the predicted class."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.config.errors import ConfigError, Error
from lockstep.config.schema.configuration import Config
from lockstep.inference import tables
from lockstep.runs.naming import display_path

UNKNOWN = "unknown"  # the class of an image without an answer
DOUBT = 0.05  # probability that the error rate of the answers is larger than promised
NUM_SHARES = 50  # thresholds that are tried


class Rule(NamedTuple):
    """Answer where the probability of the predicted class is above `threshold`, with an error rate of `max_error`.

    It was chosen on `num_images` images: of `answered`, `wrong` are errors.
    """

    max_error: float
    threshold: float
    num_images: int
    answered: int
    wrong: int
    text: str = ""  # about it, to print

    def answers(self, predictions: Tensor) -> Tensor:
        """Return the class int64 (B,) of probabilities (B, C), -1 where there is no answer, as for NaN."""
        return torch.where(predictions.amax(1).float() > self.threshold, predictions.argmax(1), -1)


def choose(confidences: NDArray[Any], is_right: NDArray[np.bool_], max_error: float) -> Rule | None:
    """Return the rule that answers most of n images, of those that keep `max_error`; None if there is none.

    Growing shares of the images are tested, each by the exact binomial test, until one fails: a fixed sequence, of
    which every test has the whole level (Angelopoulos et al. 2021, https://arxiv.org/abs/2110.01052). The first share
    passes with one error, or with none if there are too few images. The threshold of a share is the next smaller
    confidence: given it, those above are independent draws. Equal `confidences` (n,) are answered together. The order
    of the tests is right where errors are no rarer at smaller confidences; others are simulated in the tests.
    """
    from scipy.special import bdtr

    order = np.argsort(-confidences, kind="stable")
    ranked, wrong, n = confidences[order], np.cumsum(~is_right[order]), len(order)
    counts = np.arange(1, n + 1)
    starts = [counts[bdtr(allowed, counts, max_error) <= DOUBT] for allowed in (1, 0)]
    first = next((found[0] for found in starts if found.size), None)
    if first is None:
        return None
    ends, rule = counts[np.append(ranked[1:] < ranked[:-1], True)], None
    shares = np.linspace(first, n, NUM_SHARES).round()
    for count in np.unique(ends[np.searchsorted(ends, shares)]).tolist():
        if bdtr(wrong[count - 1], count, max_error) > DOUBT:
            break
        threshold = float(ranked[count]) if count < n else 0.0
        rule = Rule(max_error, threshold, n, count, int(wrong[count - 1]))
    return rule


def rule_of(
    checkpoint: Path, config: Config, max_error: float | None, out_of_fold: str | None, option: str = "--max-error {:g}"
) -> Rule | None:
    """Return the rule of a checkpoint, None without `max_error`.

    It is chosen on the validation images, or on the rows of `out_of_fold`, the file of all folds of its setting. Raises
    ConfigError, which names the `option`, if there is none.
    """
    if max_error is None:
        return None
    from scipy.special import betaincinv

    option = option.format(max_error)
    if not config.calibrate:
        raise ConfigError(Error("calibrate=false", f"leaves out what {option} needs", "remove one of them"))
    saved = torch.load(checkpoint, map_location="cpu", mmap=True, weights_only=True)
    kept = saved.get("calibration", {})
    if "val" not in kept:
        problem = f"needs calibrated probabilities of validation images, which {display_path(checkpoint)} lacks"
        raise ConfigError(
            Error(option, problem, "use the best checkpoint of a classification that was trained to its end")
        )
    if UNKNOWN in saved["image_format"]["class_names"]:
        raise ConfigError(Error(option, f"answers {UNKNOWN}, which is a class of this run, too", "rename the class"))
    confidences, is_right = (kept["val"][name].numpy() for name in ("confidences", "is_right"))
    images = "validation images"
    if out_of_fold is not None:
        lines, _, _, probabilities = tables.read([Path(out_of_fold)])
        confidences = probabilities.max(1) + 5e-7  # all that are the same in six digits are on one side of it
        is_right, images = np.array([row[1] == row[2] for row in lines]), f"images in {display_path(Path(out_of_fold))}"
    rule = choose(confidences, is_right, max_error)
    if rule is None:
        rates = (step / 1000 for step in range(int(max_error * 1000) + 1, 1000))
        least = next((rate for rate in rates if choose(confidences, is_right, rate) is not None), None)
        fix = "train with more validation images" + (f", or use {least:g}" if least is not None else "")
        problem = f"cannot be kept with {1 - DOUBT:.0%} confidence on {len(is_right):,} {images}"
        raise ConfigError(Error(option, problem, fix))
    bound = betaincinv(rule.wrong + 1, rule.answered - rule.wrong, 1 - DOUBT)  # Clopper and Pearson 1934
    share = f"{rule.answered / rule.num_images:.1%} of {rule.num_images:,} {images}"
    text = f"""\
Answers where the probability is above {rule.threshold:.6g}, else {UNKNOWN}
{share} are answered, {rule.wrong:,} wrong: exact upper bound {bound:.2%}
Error rate of the answers: at most {100 * max_error:g}% with {1 - DOUBT:.0%} confidence, for images like these only"""
    if "test" in kept and out_of_fold is None:  # whose rows have them, too
        is_right = kept["test"]["is_right"][kept["test"]["confidences"] > rule.threshold]
        share = len(is_right) / len(kept["test"]["is_right"])
        text += f"\n{share:.1%} of the test images are answered, {(~is_right).sum():,} of {len(is_right):,} wrong"
    return rule._replace(text=text)

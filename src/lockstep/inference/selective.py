"""Answer only where a network is rarely wrong.

A threshold on the probability of the predicted class selects the answers.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.config.errors import config_error
from lockstep.config.schema.configuration import Config
from lockstep.inference import tables
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import display_path

UNKNOWN = "unknown"  # the class of an image without an answer
SIGNIFICANCE = (
    0.05  # maximum probability that the error rate of the answers is larger than promised
)
NUM_COVERAGES = 50  # number of thresholds that are tested


def answers(predictions: Tensor, threshold: float) -> Tensor:
    """Return the class int64 (B,) of probabilities (B, C), or -1 without an answer.

    A class is returned if its probability is above the threshold. It is -1 for NaN, too.
    """
    return torch.where(predictions.amax(1).float() > threshold, predictions.argmax(1), -1)


def choose(
    confidences: NDArray[Any], is_right: NDArray[np.bool_], max_error: float
) -> float | None:
    """Return the threshold that answers the most images at an error rate of at most `max_error`.

    Returns None if there is none. Increasing fractions of the n images are tested, each by the
    exact binomial test, until one fails. This is a fixed sequence, of which every test has the full
    level (Angelopoulos et al. 2021, https://arxiv.org/abs/2110.01052). The first fraction is at
    least a fifth of all images. It is large enough to pass with one error, or with none if there
    are too few images.

    The threshold of a fraction is the next smaller confidence. Given this confidence, the larger
    ones are independent draws. Equal `confidences` (n,) are answered together. The thresholds are
    drawn, too, but this does not break the promise more often, as the tests check by simulation.
    """
    from scipy.special import bdtr

    order = np.argsort(-confidences, kind="stable")
    ranked, num_wrong, n = confidences[order], np.cumsum(~is_right[order]), len(order)
    sizes = ((size, num_errors) for num_errors in (1, 0) for size in range(1, n + 1))
    min_size = next(
        (size for size, num_errors in sizes if bdtr(num_errors, size, max_error) <= SIGNIFICANCE),
        None,
    )
    if min_size is None:
        return None
    ends, threshold = np.append(np.flatnonzero(ranked[1:] < ranked[:-1]) + 1, n), None
    min_counts = np.linspace(max(min_size, n // 5), n, NUM_COVERAGES).round()
    for count in np.unique(ends[np.searchsorted(ends, min_counts)]).tolist():
        if bdtr(num_wrong[count - 1], count, max_error) > SIGNIFICANCE:
            break
        threshold = float(ranked[count]) if count < n else 0.0
    return threshold


def threshold_of(
    checkpoint: Path,
    config: Config,
    max_error: float | None,
    option: str = "--max-error ",
    *,
    average: str = "",
) -> tuple[float | None, str]:
    """Return the threshold of the checkpoint of a run, and lines to print about the predictions.

    The threshold is None without `max_error`. It is chosen on the validation images, or on those of
    all folds of its setting. Raises ConfigError, which names the `option`, if there is no
    threshold. Also raises it for images in groups, which are not independent, and for an `average`,
    whose probabilities are not those of the checkpoint.
    """
    if max_error is None:
        return None, average and f"{average}\n"
    option += f"{max_error:g}"
    if not 0 < max_error < 1:
        raise config_error(
            "value", option, "is not between 0 and 1", "use an error rate such as 0.05"
        )
    if average:
        raise config_error(
            "conflict",
            option,
            "holds for the probabilities of one network, not for an average",
            "give one run, without mirror images",
        )
    if key := next(filter(config.data.arguments().get, ("group", "group_column")), ""):
        raise config_error(
            "unsupported",
            option,
            f"needs independent images, and images of one group (data.{key}) are not",
            "leave it out, and read the probabilities of the rows",
        )
    contents = torch.load(checkpoint, map_location="cpu", mmap=True, weights_only=True)
    entry = contents.get("calibration", {})
    if not config.calibrate or "val" not in entry:
        raise config_error(
            "missing",
            option,
            f"needs calibrate=true and calibrated validation images in {display_path(checkpoint)}",
            "use the best checkpoint of a classification trained to its end",
        )
    if UNKNOWN in contents["image_format"]["class_names"]:
        raise config_error(
            "conflict",
            option,
            f"labels uncertain images {UNKNOWN!r}, which is a class of this run",
            "rename the class",
        )
    samples = [
        (f"{name} images", entry[split]["confidences"].numpy(), entry[split]["is_right"].numpy())
        for split, name in (("val", "validation"), ("test", "test"))
        if split in entry
    ]
    # The images of all folds include the test images.
    if (path := tables.find_fold_file(RunFolder(checkpoint.parent.parent))) is not None:
        rows, _, _, probabilities = tables.read([path])
        is_right = np.array([truth == prediction for _, truth, prediction, *_ in rows])
        # This puts confidences that are the same in six digits on the same side of the threshold.
        samples = [(f"images in {display_path(path)}", probabilities.max(1) + 5e-7, is_right)]
    images, confidences, is_right = samples[0]
    threshold = choose(confidences, is_right, max_error)
    if threshold is None:
        hint = "train with more of them"
        for step in range(int(max_error * 1000) + 1, 1000):
            if choose(confidences, is_right, step / 1000) is not None:
                hint += f", or use {step / 1000:g}"
                break
        raise config_error(
            "unsupported",
            option,
            f"cannot be guaranteed with {1 - SIGNIFICANCE:.0%} confidence "
            f"on {len(is_right):,} {images}",
            hint,
        )
    coverage, *test_coverages = [_describe_coverage(threshold, *sample) for sample in samples]
    lines = [
        f"Answers where the probability is above {threshold:.6g}, else {UNKNOWN}",
        coverage,
        f"At most {100 * max_error:g}% of the answers are wrong "
        f"(confidence {1 - SIGNIFICANCE:.0%}), for images like these",
        # The test images did not choose the checkpoint.
        *(f"{test_coverage}: the independent check" for test_coverage in test_coverages),
    ]
    return threshold, "\n".join([*lines, ""])


def _describe_coverage(
    threshold: float, images: str, confidences: NDArray[Any], is_right: NDArray[np.bool_]
) -> str:
    hits = is_right[confidences > threshold]
    return (
        f"{len(hits) / len(is_right):.1%} of {len(is_right):,} {images} are answered, "
        f"{(~hits).sum():,} of {len(hits):,} wrong"
    )

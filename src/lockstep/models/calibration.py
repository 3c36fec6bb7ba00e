"""Calibrate the outputs of a trained network on its validation images."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from lockstep.distributed.collectives import gather_objects, sum_over_ranks
from lockstep.models.classifier import Checkpoint, Classifier
from lockstep.system.text import join_names, plural
from lockstep.tasks.classification import Classification
from lockstep.tasks.task import Task
from lockstep.tasks.vectors import Multilabel

# A calibration needs this many images. For a label, it needs as many with the label as without it.
# It was simulated with 100 images of 2 to 100 classes (300 draws each, 2026-11-27). New images
# became more likely in 90 % to 100 % of draws if logits were 1.5 times too large. If logits were
# twice too large, they did in 99 %. For labels, these numbers are 68 % and 92 %. With 50 images,
# they are 77 % and 94 %. Calibrated logits lost 0.003 at the median.
MIN_IMAGES = 100
# A calibration needs this many wrong images. Logits twice too small were simulated (2 classes, 98 %
# right, 100 and 180 images, 400 draws each, 2026-11-27). New images became more likely in 86 % of
# draws with two wrong images. With one, they did in 64 %, and became less likely on average.
MIN_WRONG_IMAGES = 2
# The slope is searched in this range. Smaller ones make two classes equally probable in float32.
LOG_SLOPES = -10.0, 30.0
ROWS = 4096  # rows that are in memory in float64


class Calibration(nn.Module):
    """Maps outputs (B, C) of a network to those of calibrated predictions.

    The result is `slope` times the outputs plus `offset`, each of shape (1,) or (C,). The slope is
    positive. A single slope for all classes is 1 / temperature (Guo et al. 2017,
    https://arxiv.org/abs/1706.04599). Each label has a slope of its own (Platt 1999).
    """

    slope: Tensor
    offset: Tensor

    def __init__(self, entry: Mapping[str, Any]) -> None:
        """Take the `entry` of a checkpoint, which stays available."""
        super().__init__()
        self.entry = entry
        self.register_buffer("slope", entry["slope"], persistent=False)
        self.register_buffer("offset", entry["offset"], persistent=False)

    @override
    def forward(self, outputs: Tensor) -> Tensor:
        return outputs * self.slope + self.offset


def restore(module: Classifier, checkpoint: Checkpoint) -> None:
    """Restore the calibration of a checkpoint, if it has one, in the dtype of the module."""
    if "calibration" in checkpoint:
        module.calibration = Calibration(checkpoint["calibration"]).to(module.mean)


def has_probabilities(task: Task) -> bool:
    """Return whether predictions are the softmax or the sigmoid of the outputs.

    This does not depend on the loss, which may shift these probabilities.
    """
    return type(task).predictions in (Classification.predictions, Multilabel.predictions)


def fit(
    outputs: Tensor, targets: Tensor, names: Sequence[str], device: torch.device
) -> dict[str, Any]:
    """Return the checkpoint entry with the least negative log-likelihood of outputs (n, C).

    The outputs are those of the shards of all ranks, and every rank must call it. Targets are
    classes (n,), or labels (n, C) called `names`. Classes are computed on `device`, in float64.

    If no calibration is possible, the slope is 1, the offset 0, and `note` has the reason. There
    may be too few images, or too few wrong ones, so that the slope could be infinite. Outputs may
    be no better than chance, so that the slope would not be positive, or may not be finite.
    """
    count = sum(gather_objects(len(outputs)))
    if targets.dim() == 1:
        slope, note = _fit_classes(outputs, targets, device, count)
        fits = [(slope, 0.0, note)]
    else:
        pairs = zip(outputs.unbind(1), targets.unbind(1), strict=True)
        fits = [
            _fit_label(values.double().numpy(), label_targets.numpy() > 0)
            for values, label_targets in pairs
        ]
        left_out = defaultdict[str, list[str]](list)
        for label, (_, _, reason) in zip(names, fits, strict=True):
            left_out[reason].append(label)
        note = "; ".join(
            f"{join_names(labels, 3)}: {reason}" for reason, labels in left_out.items() if reason
        )
    slopes, offsets, _ = zip(*fits, strict=True)
    slope, offset = (torch.tensor(numbers, dtype=torch.float64) for numbers in (slopes, offsets))
    return {"slope": slope, "offset": offset, "num_images": count, "note": note}


def _fit_classes(
    outputs: Tensor, classes: Tensor, device: torch.device, count: int
) -> tuple[float, str]:
    """Return one slope for all classes of `count` images, and the reason if it is 1."""
    from scipy.optimize import root_scalar

    def derivative(log_slope: float) -> float:
        """Return the derivative of the negative log-likelihood by the slope.

        It increases with the slope, because the function is convex.
        """
        total = torch.zeros(1, dtype=torch.float64, device=device)
        for values, targets in zip(outputs.split(ROWS), classes.split(ROWS), strict=True):
            rows = values.to(device).double()
            rows = rows - rows.gather(1, targets.to(device)[:, None])
            total += ((rows * math.exp(log_slope)).softmax(1) * rows).sum()
        return sum_over_ranks(total).item()

    if count < MIN_IMAGES:
        return 1.0, f"{plural(count, 'validation image')}, and {MIN_IMAGES} are needed"
    min_derivative, max_derivative = map(derivative, LOG_SLOPES)
    if not math.isfinite(min_derivative + max_derivative):
        return 1.0, "outputs that are not finite"
    if min_derivative >= 0:
        return 1.0, "no better than chance on the validation images"
    num_wrong = sum(gather_objects(int((outputs.argmax(1) != classes).sum())))
    if num_wrong < MIN_WRONG_IMAGES or max_derivative <= 0:  # Equal outputs can be right or wrong.
        return (
            1.0,
            f"{num_wrong} of {plural(count, 'validation image')} wrong, "
            f"and {MIN_WRONG_IMAGES} are needed",
        )
    return math.exp(root_scalar(derivative, bracket=LOG_SLOPES, xtol=1e-15).root), ""


def _fit_label(values: NDArray[np.float64], is_one: NDArray[np.bool_]) -> tuple[float, float, str]:
    """Return slope and offset of a label, and the reason if they are 1 and 0.

    Outputs and targets are (n,). The optimum exists if outputs with the label and without it
    overlap (Albert and Anderson 1984).
    """
    from sklearn.linear_model import LogisticRegression  # The import takes 1 s.

    values, is_one = (
        np.concatenate(arrays) for arrays in zip(*gather_objects((values, is_one)), strict=True)
    )
    # Sorting makes sums the same bits for any number of workers.
    order = np.lexsort((is_one, values))
    values, is_one = values[order], is_one[order]
    negatives, positives = values[~is_one], values[is_one]
    if min(len(negatives), len(positives)) < MIN_IMAGES:
        return 1.0, 0.0, f"fewer than {MIN_IMAGES} validation images with it, or without it"
    if not np.isfinite(values).all():
        return 1.0, 0.0, "outputs that are not finite"
    if positives.mean() <= negatives.mean():
        return 1.0, 0.0, "no better than chance on the validation images"
    if negatives.max() <= positives.min():
        return 1.0, 0.0, "no validation image is wrong"
    center, unit = values.mean(), values.std()
    model: Any = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000, solver="newton-cg")
    model.fit(((values - center) / unit)[:, None], is_one)
    slope = model.coef_.item() / unit
    return slope, model.intercept_.item() - slope * center, ""

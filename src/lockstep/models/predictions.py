"""Collect the predictions and confidences of all samples of a split, for reports and figures."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep.distributed.collectives import gather_objects
from lockstep.models.calibration import Calibration
from lockstep.tasks.task import Task
from lockstep.tasks.vectors import Multilabel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
NUM_BINS = 15  # bins of equal width from 0 to 1 (Guo et al. 2017)
EDGES = np.linspace(0, 1, NUM_BINS + 1)


class Quality(NamedTuple):
    """Scores of the probabilities of each image, which are `nll` and `brier` (N,).

    They are the negative log-likelihood and the Brier score. For classes, `confidences` (N,) are
    the probabilities of the predicted classes, and the Brier score is the sum over the classes. For
    labels, `confidences` (N, L) are the probabilities of all labels, and both scores are means over
    the labels.
    """

    nll: Floats
    brier: Floats
    confidences: Floats


class Findings(NamedTuple):
    """The predictions of a split in the order of its positions.

    Predictions are classes (N,), or 1 or 0 for each label (N, L). `probabilities` (N,) or (N, L)
    have the same bits as in `lockstep predict`, which a threshold compares. `calibrated` is None
    without a calibration, or if it changes nothing.
    """

    num_classes: int
    indices: Integers
    labels: Integers
    predictions: Integers
    probabilities: Floats
    raw: Quality
    calibrated: Quality | None

    @property
    def is_multilabel(self) -> bool:
        return self.labels.ndim == 2

    @property
    def hits(self) -> NDArray[np.bool_]:
        """Return whether the event of each confidence occurred.

        The event is the predicted class (N,), or the label (N, L).
        """
        return self.labels == (1 if self.is_multilabel else self.predictions)

    @property
    def confusion(self) -> Integers:
        """Return counts (C, C), with true classes as rows and predicted classes as columns."""
        flat = np.bincount(
            self.labels * self.num_classes + self.predictions, minlength=self.num_classes**2
        )
        return flat.reshape(self.num_classes, self.num_classes)

    def worst(self, count: int) -> Integers:
        """Return the rows of up to `count` mistakes, the most confident one first."""
        mistakes = np.flatnonzero(self.labels != self.predictions)
        return mistakes[np.argsort(-self.probabilities[mistakes], kind="stable")][:count]

    def bins(self, quality: Quality) -> Floats:
        """Return the counts, mean confidences and fractions of hits in each bin (3, NUM_BINS).

        The means of an empty bin are NaN.
        """
        confidences, hits = quality.confidences.ravel(), self.hits.ravel()
        weights = np.ones(len(hits)), confidences, hits
        counts, *sums = (np.bincount(bins_of(confidences), values, NUM_BINS) for values in weights)
        with np.errstate(invalid="ignore"):
            return np.stack([counts, *(values / counts for values in sums)]).astype(np.float64)


def bins_of(confidences: Floats) -> Integers:
    """Return the bin numbers. Each bin contains its lower edge, and the last one also 1."""
    return np.digitize(confidences, EDGES[1:-1])


def labels_of(task: Task, outputs: Tensor, targets: Tensor) -> Tensor | None:
    """Return the targets of outputs (B, C) as int64, classes (B,) or labels (B, L).

    Returns None for maps and for soft targets.
    """
    if outputs.dim() == 2 and isinstance(task, Multilabel):
        return targets.reshape(outputs.shape).long()
    is_class = outputs.dim() == 2 and targets.dim() == 1 and not targets.is_floating_point()
    return targets.long() if is_class else None


class FindingsCollector:
    """Collects the predictions of this rank's shards on the device, without waiting for it."""

    def __init__(self, task: Task, calibration: nn.Module, num_classes: int) -> None:
        self._task, self._calibration, self._num_classes = task, calibration, num_classes
        self._is_calibrated = False
        if isinstance(calibration, Calibration):
            changes = (calibration.slope != 1) | (calibration.offset != 0)
            self._is_calibrated = bool(changes.any())
        self._samples: list[list[Tensor]] = []

    def update(self, outputs: Tensor, targets: Tensor, indices: Tensor) -> None:
        """Add outputs (B, C), their targets and the positions (B,) of the samples.

        Outputs and targets of other shapes are not counted.
        """
        labels = labels_of(self._task, outputs, targets)
        if labels is not None:
            probabilities = self._task.predictions(self._calibration(outputs))
            probabilities = probabilities.nan_to_num(0.0).double()
            outputs = outputs.double()
            if labels.dim() == 2:
                best = (outputs > 0).long()
            else:
                best = outputs.softmax(1).nan_to_num(0.0).argmax(1)  # NaN shows in the metrics.
                probabilities = probabilities.amax(1)
            scores = _scores(outputs, labels)
            if self._is_calibrated:
                scores += _scores(self._calibration(outputs), labels)
            self._samples.append([indices, labels, best, probabilities, *scores])

    def findings(self) -> Findings | None:
        """Gather the findings of all ranks, or None without any sample. Every rank must call it.

        Samples whose class is not a number from 0 to C - 1, which a custom loss may ignore, are
        left out.
        """
        rank_arrays: Any = [
            torch.cat(arrays).cpu().numpy() for arrays in zip(*self._samples, strict=True)
        ]
        # The shard of a rank can be empty.
        all_arrays = [arrays for arrays in gather_objects(rank_arrays) if arrays]
        if not all_arrays:
            return None
        indices, labels, *columns = (
            np.concatenate(arrays) for arrays in zip(*all_arrays, strict=True)
        )
        order = np.argsort(indices)
        if labels.ndim == 1:
            order = order[(labels[order] >= 0) & (labels[order] < self._num_classes)]
        best, probabilities, *scores = (column[order] for column in columns)
        raw, calibrated = Quality(*scores[:3]), Quality(*scores[3:]) if scores[3:] else None
        findings = Findings(
            self._num_classes, indices[order], labels[order], best, probabilities, raw, calibrated
        )
        return findings if len(order) else None


def _scores(outputs: Tensor, labels: Tensor) -> list[Tensor]:
    """Return the fields of `Quality` for outputs (B, C) in float64."""
    if labels.dim() == 2:
        truth, probabilities = labels.double(), outputs.sigmoid()
        nll = F.binary_cross_entropy_with_logits(outputs, truth, reduction="none").mean(1)
        return [nll, (probabilities - truth).square().mean(1), probabilities.nan_to_num(0.0)]
    logs = outputs.log_softmax(1)
    probabilities = logs.exp()
    log_likelihoods = logs.gather(1, labels.clamp(0, outputs.shape[1] - 1)[:, None]).squeeze(1)
    # This is the sum of the squared differences from 0 and 1.
    brier = probabilities.square().sum(1) - 2 * log_likelihoods.exp() + 1
    return [-log_likelihoods, brier, probabilities.amax(1).nan_to_num(0.0)]

"""What a pass over a split showed of every sample and class: the ground of pictures and curves."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.distributed.collectives import gather_objects, sum_over_ranks

NUM_THRESHOLDS = 101


class Findings(NamedTuple):
    """All samples of a split, in the order of their positions, and counts of probabilities.

    `probabilities` (N,) are those of the predicted classes. `positives` and `negatives` (C, NUM_THRESHOLDS) count the
    samples that are of a class, and that are not, by the probability the network gave that class: place k counts
    those in [k, k + 1) / (NUM_THRESHOLDS - 1).
    """

    indices: NDArray[np.int64]
    labels: NDArray[np.int64]
    predictions: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    positives: NDArray[np.int64]
    negatives: NDArray[np.int64]

    @property
    def confusion(self) -> NDArray[np.int64]:
        """Counts (C, C): rows are true classes, columns predicted ones."""
        num_classes = len(self.positives)
        flat = np.bincount(self.labels * num_classes + self.predictions, minlength=num_classes**2)
        return flat.reshape(num_classes, num_classes)

    def worst(self, count: int) -> NDArray[np.int64]:
        """Rows of up to `count` mistakes, the most confident one first."""
        wrong = np.flatnonzero(self.labels != self.predictions)
        return wrong[np.argsort(-self.probabilities[wrong], kind="stable")][:count]


class Outcomes:
    """Collects this rank's part of a pass on the device, without waiting for it."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self._samples: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._offsets = NUM_THRESHOLDS * torch.arange(num_classes, device=device)
        shape = (num_classes * NUM_THRESHOLDS,)
        self._positives = torch.zeros(shape, dtype=torch.int64, device=device)
        self._all = torch.zeros(shape, dtype=torch.int64, device=device)

    def update(self, logits: Tensor, labels: Tensor, indices: Tensor) -> None:
        """Take in logits (B, C), labels (B,) and the positions (B,) of the samples in the split."""
        shares = logits.softmax(1).nan_to_num(0.0)  # the metrics tell of a network that computes no numbers
        probabilities, predictions = shares.max(1)
        self._samples.append((indices, labels, predictions, probabilities))
        places = (shares * (NUM_THRESHOLDS - 1)).long() + self._offsets
        of_label = places.gather(1, labels[:, None])
        for counts, bins in ((self._all, places), (self._positives, of_label)):  # bincount would wait for a GPU
            counts.index_add_(0, bins.flatten(), torch.ones_like(bins).flatten())

    def findings(self) -> Findings | None:
        """Gather the findings of all ranks; None where nobody took anything in. Every rank must call it."""
        mine: Any = [torch.cat(parts).cpu().numpy() for parts in zip(*self._samples, strict=True)]
        gathered = [parts for parts in gather_objects(mine) if parts]  # a rank's share of a split can be empty
        if not gathered:
            return None
        indices, labels, predictions, probabilities = (np.concatenate(parts) for parts in zip(*gathered, strict=True))
        order = np.argsort(indices)
        counts = [
            sum_over_ranks(histogram).view(-1, NUM_THRESHOLDS).cpu().numpy()
            for histogram in (self._positives, self._all)
        ]
        return Findings(
            indices[order],
            labels[order],
            predictions[order],
            probabilities[order].astype(np.float64),
            counts[0],
            counts[1] - counts[0],
        )

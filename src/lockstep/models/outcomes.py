"""Predictions of all samples of a split, collected for pictures."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.distributed.collectives import gather_objects


class Findings(NamedTuple):
    """Predictions of a split in the order of its positions; `probabilities` (N,) are those of the predictions."""

    num_classes: int
    indices: NDArray[np.int64]
    labels: NDArray[np.int64]
    predictions: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    @property
    def confusion(self) -> NDArray[np.int64]:
        """Counts (C, C): rows are true classes, columns predicted ones."""
        flat = np.bincount(self.labels * self.num_classes + self.predictions, minlength=self.num_classes**2)
        return flat.reshape(self.num_classes, self.num_classes)

    def worst(self, count: int) -> NDArray[np.int64]:
        """Return the rows of up to `count` mistakes, the most confident one first."""
        wrong = np.flatnonzero(self.labels != self.predictions)
        return wrong[np.argsort(-self.probabilities[wrong], kind="stable")][:count]


class Outcomes:
    """Collects the predictions of this rank's shards on the device, without waiting for it."""

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._samples: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def update(self, logits: Tensor, labels: Tensor, indices: Tensor) -> None:
        """Add logits (B, C), labels (B,) and the positions (B,) of the samples in the split."""
        probabilities, predictions = logits.softmax(1).nan_to_num(0.0).max(1)  # the metrics show a NaN
        self._samples.append((indices, labels, predictions, probabilities))

    def findings(self) -> Findings | None:
        """Gather the findings of all ranks; None without any sample. Every rank must call it."""
        mine: Any = [torch.cat(parts).cpu().numpy() for parts in zip(*self._samples, strict=True)]
        gathered = [parts for parts in gather_objects(mine) if parts]  # a rank's shard of a split can be empty
        if not gathered:
            return None
        indices, labels, predictions, probabilities = (np.concatenate(parts) for parts in zip(*gathered, strict=True))
        order = np.argsort(indices)
        probabilities = probabilities[order].astype(np.float64)
        return Findings(self._num_classes, indices[order], labels[order], predictions[order], probabilities)

"""Tasks with a number for each output: any number of labels, and numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from typing_extensions import override

from lockstep.distributed.batch import Batch
from lockstep.tasks.task import SupervisedTask, all_or_none, every


class Multilabel(SupervisedTask):
    """Any number of labels for each image: targets are 0 or 1 for each, (B, C), of logits (B, C).

    `loss` takes logits and targets as floats, e.g. torch's binary cross-entropy with logits.
    """

    takes = "0 or 1 for each label ({count} of them)"
    named = "labels"
    takes_flips = True

    @override
    def fits(self, targets: Tensor, outputs: Tensor) -> Tensor:
        return every((targets == 0) | (targets == 1)) & all_or_none(_is_like(outputs, targets), targets)

    @override
    def targets(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _like(outputs, targets)

    @override
    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the probability of every label (B, C)."""
        return outputs.sigmoid()

    @override
    def metric_inputs(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.predictions(outputs.double()), batch.targets.long()

    @override
    def metric_arguments(self, num_outputs: int) -> Mapping[str, Any]:
        return {"task": "multilabel", "num_labels": num_outputs}

    @override
    def cells(self, predictions: Tensor, class_names: Sequence[str]) -> list[list[str]]:
        return [[f"{value:.6f}" for value in row] for row in predictions.tolist()]


class Regression(SupervisedTask):
    """Numbers for each image: targets (B,) or (B, C) of outputs (B, C).

    `loss` takes both as floats of one shape, e.g. torch's squared error.
    """

    takes = "a finite number for each output ({count} of them)"
    named = "numbers"

    @override
    def fits(self, targets: Tensor, outputs: Tensor) -> Tensor:
        return every(targets.isfinite()) & all_or_none(_is_like(outputs, targets), targets)

    @override
    def targets(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _like(outputs, targets)

    @override
    def metric_inputs(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return both as (B,) if there is one number, else (B, C), in float64."""
        predicted, targets = outputs.double(), _like(outputs, batch.targets).double()
        return (predicted.squeeze(1), targets.squeeze(1)) if predicted.dim() == 2 else (predicted, targets)


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return `targets` in the dtype and shape of `outputs`: (B,) for (B, 1). Raises ValueError for other shapes."""
    if not _is_like(outputs, targets):  # torch would silently broadcast
        given, expected = (tuple(values.shape[1:]) for values in (outputs, targets))
        raise ValueError(f"The network gives {given} numbers for each sample, the data {expected}")
    return targets.reshape(outputs.shape).to(outputs.dtype)


def _is_like(outputs: Tensor, targets: Tensor) -> bool:
    expected = outputs.shape[1:]
    return targets.shape[1:] == expected or (expected[:1] == (1,) and targets.shape[1:] == expected[1:])

"""Loss and metrics of an evaluation, from any shards of its split."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torchmetrics.classification.accuracy import MulticlassAccuracy
from torchmetrics.metric import Metric

from lockstep.distributed.batch import Batch
from lockstep.distributed.collectives import sum_over_ranks
from lockstep.tasks import reduction
from lockstep.tasks.task import Task, checked_losses


class Scores(nn.Module):
    """Mean loss and metrics of one pass over a split, each sample counted once, reduced over the ranks at the end.

    It copies `metrics`, by name.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        super().__init__()
        self._metrics = {name: metric.clone() for name, metric in metrics.items()}
        self.parts = nn.ModuleList(self._metrics.values())  # so that they move to the device
        for name, metric in self._metrics.items():
            reduction.prepare(f"task.metrics.{name}", metric)
        self._sums = torch.zeros(3, dtype=torch.float64)  # losses, their weights, samples

    def start(self, device: torch.device) -> None:
        for metric in self._metrics.values():
            metric.reset()
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)

    def update(self, task: Task, outputs: Tensor, batch: Batch) -> None:
        """Add the outputs for a batch, which must not be empty: not every metric can take that."""
        values, weights = checked_losses(task, outputs, batch)
        self._sums[0] += values.detach().double().sum()
        self._sums[1] += len(values) if weights is None else weights.detach().double().sum()
        self._sums[2] += len(values)
        inputs = task.metric_inputs(outputs, batch) if self._metrics else ()
        for name, metric in self._metrics.items():
            try:
                metric.update(*inputs)
            except (TypeError, ValueError, RuntimeError) as error:
                raise MetricError(
                    f"task.metrics.{name} ({type(metric).__name__}) cannot be updated: {error}"
                ) from error

    def compute(self, split: str, num_expected: int) -> dict[str, float]:
        """Return the global values. Every rank must call it.

        Raises RuntimeError when a sample was lost or counted twice.
        """
        loss_sum, weight_sum, num_seen = sum_over_ranks(self._sums).tolist()
        if round(num_seen) != num_expected:
            raise RuntimeError(f"The {split} split has {num_expected} samples, but {round(num_seen)} were evaluated.")
        reduction.reduce(self._metrics)
        loss = loss_sum / weight_sum if weight_sum else float("nan")
        return {f"{split}/{name}": value for name, value in [("loss", loss), *self.numbers()]}

    def numbers(self) -> Iterator[tuple[str, float]]:
        """Yield the value of each metric so far, a dictionary by its keys. Raises MetricError for other values."""
        for name, metric in self._metrics.items():
            computed = metric.compute()
            for part, value in computed.items() if isinstance(computed, dict) else [("", computed)]:
                if not isinstance(value, Tensor | int | float) or (isinstance(value, Tensor) and value.numel() != 1):
                    raise MetricError(
                        f"task.metrics.{name} ({type(metric).__name__}) returns no single number: average over "
                        "classes, or wrap it in torchmetrics.ClasswiseWrapper"
                    )
                yield (f"{name}_{part}" if part else name), float(value)


class Accuracy(MulticlassAccuracy):
    """Fraction of samples, or pixels, whose most probable class is right; of probabilities (B, num_classes, ...)."""

    def __init__(self, *, num_classes: int) -> None:
        super().__init__(num_classes, average="micro", validate_args=False)  # validation waits for a GPU


class MetricError(ValueError):
    """A metric of the configuration cannot be updated by the task, or returns no number."""

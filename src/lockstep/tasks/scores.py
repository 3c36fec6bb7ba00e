"""Compute loss and metrics of an evaluation from any shards of its split.

torchmetrics runs one collective per state, and hangs if a rank with an empty shard has another
number of states. Here, the states that metrics declare are reduced over all ranks in a single
collective.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.classification.accuracy import MulticlassAccuracy
from torchmetrics.metric import Metric
from torchmetrics.utilities.data import dim_zero_mean

from lockstep.distributed.batch import Batch
from lockstep.distributed.collectives import gather_objects, is_distributed, sum_over_ranks
from lockstep.system import internals
from lockstep.tasks.task import Task, checked_losses


class Scores(nn.Module):
    """The mean loss and the metrics of one evaluation of a split.

    Each sample is counted once, and the results are reduced over the ranks at the end. `metrics`
    are copied, by name.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        super().__init__()
        self._metrics = {name: metric.clone() for name, metric in metrics.items()}
        self.parts = nn.ModuleList(self._metrics.values())  # This moves them to the device.
        for name, metric in self._metrics.items():
            prepare_metric(f"task.metrics.{name}", metric)
        self._sums = torch.zeros(3, dtype=torch.float64)  # losses, weights, number of samples

    def start(self, device: torch.device) -> None:
        for metric in self._metrics.values():
            metric.reset()
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)

    def update(self, task: Task, outputs: Tensor, batch: Batch) -> None:
        """Add the outputs for a batch, which must not be empty, as not every metric accepts that.

        Raises MetricError if a metric cannot be updated.
        """
        values, weights = checked_losses(task, outputs, batch)
        self._sums[0] += values.detach().double().sum()
        self._sums[1] += len(values) if weights is None else weights.detach().double().sum()
        self._sums[2] += len(values)
        inputs = task.metric_inputs(outputs, batch) if self._metrics else ()
        for name, metric in self._metrics.items():
            try:
                metric.update(*inputs)
            except (TypeError, ValueError, RuntimeError) as error:
                key = f"task.metrics.{name} ({type(metric).__name__})"
                raise MetricError(f"{key} cannot be updated: {error}") from error

    def compute(self, split: str, num_expected: int) -> dict[str, float]:
        """Return the global values. Every rank must call it.

        Raises RuntimeError if a sample was lost or counted twice.
        """
        loss_sum, weight_sum, num_seen = sum_over_ranks(self._sums).tolist()
        if round(num_seen) != num_expected:
            raise RuntimeError(
                f"The {split} split has {num_expected} samples, "
                f"but {round(num_seen)} were evaluated."
            )
        reduce_states(self._metrics)
        loss = loss_sum / weight_sum if weight_sum else float("nan")
        return {f"{split}/{name}": value for name, value in [("loss", loss), *self.numbers()]}

    def numbers(self) -> Iterator[tuple[str, float]]:
        """Yield the value of each metric so far, and a dictionary by its keys.

        Raises MetricError for other values.
        """
        for name, metric in self._metrics.items():
            result = metric.compute()
            for key, value in result.items() if isinstance(result, dict) else [("", result)]:
                if not isinstance(value, Tensor | int | float) or (
                    isinstance(value, Tensor) and value.numel() != 1
                ):
                    raise MetricError(
                        f"task.metrics.{name} ({type(metric).__name__}) does not return a single "
                        "number: average over classes, or wrap it in torchmetrics.ClasswiseWrapper"
                    )
                yield (f"{name}_{key}" if key else name), float(value)


class Accuracy(MulticlassAccuracy):
    """The fraction of samples, or pixels, whose most probable class is right.

    It takes probabilities (B, num_classes, ...).
    """

    def __init__(self, *, num_classes: int) -> None:
        # Validating the arguments would wait for a GPU.
        super().__init__(num_classes, average="micro", validate_args=False)


class MetricError(ValueError):
    """An error for a metric of the configuration that the task cannot use.

    It cannot be updated by the task, or does not return a number.
    """


def prepare_metric(key: str, metric: Metric) -> None:
    """Make a metric compute its sums in float64, and leave the ranks to `reduce_states`.

    Raises ValueError, with its `key`, for a metric that averages over the ranks. With uneven
    shards, that is not the mean over the samples.
    """
    _widen(key, metric)
    for component in _parts(metric):
        component.distributed_available_fn = lambda: False


def prepare_to_log(key: str, metric: Metric) -> None:
    """Prepare a metric that a custom module logs, and that Lightning computes over all ranks.

    Its sums are computed in float64, and Lightning's synchronization is replaced by
    `reduce_states`. Raises ValueError as `prepare_metric` does.
    """
    _widen(key, metric)

    def sync(component: Metric, *args: Any, **kwargs: Any) -> None:
        reduce_states({"": component})

    for component in _parts(metric):
        internals.replace_sync(component, functools.partial(sync, component))


def _widen(key: str, metric: Metric) -> None:
    for component in _parts(metric):
        for state, (how, default) in internals.reductions(component).items():
            if how is dim_zero_mean:
                problem = (
                    f"{type(component).__name__} averages its state {state!r} over the workers"
                )
                raise ValueError(
                    f"{key}: {problem}: add up a sum and a count (dist_reduce_fx='sum') instead"
                )
            if isinstance(default, Tensor) and default.is_floating_point():
                component.add_state(state, default.double(), dist_reduce_fx=how, persistent=False)


def reduce_states(metrics: Mapping[str, Metric]) -> None:
    """Merge the states of all ranks into every metric. Every rank must call it."""
    if not is_distributed():
        return
    components = [component for metric in metrics.values() for component in _parts(metric)]
    rank_states = [
        {state: _host_copy(getattr(component, state)) for state in internals.reductions(component)}
        for component in components
    ]
    for component, states in zip(
        components, zip(*gather_objects(rank_states), strict=True), strict=True
    ):
        for state, (how, _) in internals.reductions(component).items():
            setattr(
                component,
                state,
                _merge_state([of_rank[state] for of_rank in states], how, component.device),
            )


def _parts(metric: Metric) -> Iterator[Metric]:
    """Yield a metric and the metrics that it wraps."""
    return (component for component in metric.modules() if isinstance(component, Metric))


def _host_copy(state: Any) -> Any:
    return [value.cpu() for value in state] if isinstance(state, list) else state.cpu()


def _merge_state(states: list[Any], how: Any, device: torch.device) -> Any:
    """Merge one state, lists in rank order and others by the metric's own function `how`.

    If `how` is None, there is one row for each rank, and the metric merges them itself.
    """
    if isinstance(states[0], list):
        return [value.to(device) for state in states for value in state]
    rows = torch.stack(states).to(device)
    return rows if how is None else how(rows)

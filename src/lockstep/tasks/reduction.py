"""Reduction of torchmetrics' metrics over all ranks, by the states they declare, in one message.

torchmetrics sends state by state, and hangs if a rank with an empty shard has another number of them.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics.metric import Metric
from torchmetrics.utilities.data import dim_zero_mean

from lockstep.distributed.collectives import gather_objects, is_distributed
from lockstep.system import internals


def prepare(key: str, metric: Metric) -> None:
    """Make a metric keep its sums in float64, and leave the ranks to `reduce`.

    Raises ValueError, with its `key`, for one that averages over the ranks: with uneven shards that is not the mean
    over the samples.
    """
    _widen(key, metric)
    for part in _parts(metric):
        part.distributed_available_fn = _never


def prepare_to_log(key: str, metric: Metric) -> None:
    """Do the same for a metric that a custom module logs: Lightning computes it over all ranks."""
    _widen(key, metric)

    def sync(part: Metric, *args: Any, **kwargs: Any) -> None:
        reduce({"": part})

    for part in _parts(metric):
        internals.replace_sync(part, functools.partial(sync, part))


def _widen(key: str, metric: Metric) -> None:
    for part in _parts(metric):
        for state, (how, default) in internals.reductions(part).items():
            if how is dim_zero_mean:
                problem = f"{type(part).__name__} averages its state {state!r} over the workers"
                raise ValueError(f"{key}: {problem}: add up a sum and a count (dist_reduce_fx='sum') instead")
            if isinstance(default, Tensor) and default.is_floating_point():
                part.add_state(state, default.double(), dist_reduce_fx=how, persistent=False)


def reduce(metrics: Mapping[str, Metric]) -> None:
    """Merge the states of all ranks into every metric. Every rank must call it."""
    if not is_distributed():
        return
    parts = [part for metric in metrics.values() for part in _parts(metric)]
    mine = [{state: _host_copy(getattr(part, state)) for state in internals.reductions(part)} for part in parts]
    for part, states in zip(parts, zip(*gather_objects(mine), strict=True), strict=True):
        for state, (how, _) in internals.reductions(part).items():
            setattr(part, state, _merge_state([of_rank[state] for of_rank in states], how, part.device))


def _never() -> bool:
    return False


def _parts(metric: Metric) -> Iterator[Metric]:
    """Yield a metric, and those that it wraps."""
    return (part for part in metric.modules() if isinstance(part, Metric))


def _host_copy(state: Any) -> Any:
    return [value.cpu() for value in state] if isinstance(state, list) else state.cpu()


def _merge_state(states: list[Any], how: Any, device: torch.device) -> Any:
    """Merge one state: lists in rank order, others by the metric's own function `how`.

    Without one, return one row of each rank: the metric merges them itself.
    """
    if isinstance(states[0], list):
        return [value.to(device) for state in states for value in state]
    rows = torch.stack(states).to(device)
    return rows if how is None else how(rows)

"""Metrics of torchmetrics over all ranks, reduced by the states they declare: one message, whatever there are of them.

torchmetrics' own way sends state by state, and hangs where a rank whose shard was empty has another number of them.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics.metric import Metric
from torchmetrics.utilities.data import dim_zero_mean

from lockstep.distributed.collectives import gather_objects, is_distributed


def prepare(key: str, metric: Metric) -> None:
    """Have a metric keep its sums in float64, and leave the ranks to `reduce`.

    Raises ValueError, which names it by `key`, for one that is a mean over the ranks: with uneven shards that is no
    mean over the samples.
    """
    _widen(key, metric)
    for part in _parts(metric):
        part.distributed_available_fn = _never


def prepare_to_log(key: str, metric: Metric) -> None:
    """The same for a metric that a module of the user's own logs: Lightning asks it for its value over all ranks."""
    _widen(key, metric)
    for part in _parts(metric):
        part._sync_dist = functools.partial(_reduce_part, part)


def keep_wide(metric: Metric) -> None:
    """Have metrics of single values, such as MeanMetric, take float64: whatever moves one makes it round to float32."""
    for part in _parts(metric):
        part._dtype = torch.float64


def _widen(key: str, metric: Metric) -> None:
    for part in _parts(metric):
        for state, how in part._reductions.items():
            if how is dim_zero_mean:
                raise ValueError(
                    f"{key}: {type(part).__name__} averages its state {state!r} over the workers, which "
                    "is not what one worker would measure: add up a sum and a count (dist_reduce_fx='sum') instead"
                )
            default = part._defaults[state]
            if isinstance(default, Tensor) and default.is_floating_point():
                part.add_state(state, default.double(), dist_reduce_fx=how, persistent=False)


def reduce(metrics: Mapping[str, Metric]) -> None:
    """Give every metric the states of all ranks together. Every rank must call it."""
    if not is_distributed():
        return
    parts = [part for metric in metrics.values() for part in _parts(metric)]
    mine = [{state: _on_host(getattr(part, state)) for state in part._reductions} for part in parts]
    for part, states in zip(parts, zip(*gather_objects(mine), strict=True), strict=True):
        for state, how in part._reductions.items():
            setattr(part, state, _merged([of_rank[state] for of_rank in states], how, part.device))


def _reduce_part(part: Metric, *args: Any, **kwargs: Any) -> None:
    """In the place of torchmetrics' own way, with whose arguments it is called."""
    reduce({"": part})


def _never() -> bool:
    return False


def _parts(metric: Metric) -> Iterator[Metric]:
    """A metric, and those that it wraps."""
    return (part for part in metric.modules() if isinstance(part, Metric))


def _on_host(state: Any) -> Any:
    return [value.cpu() for value in state] if isinstance(state, list) else state.cpu()


def _merged(states: list[Any], how: Any, device: torch.device) -> Any:
    """One state of all ranks: what was collected sample by sample in rank order, sums and extremes as the metric says.

    Where it says nothing, one row of each rank: it merges them itself.
    """
    if isinstance(states[0], list):
        return [value.to(device) for state in states for value in state]
    rows = torch.stack(states).to(device)
    return rows if how is None else how(rows)

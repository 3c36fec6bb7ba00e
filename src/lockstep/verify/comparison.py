"""Comparison of two trainings: how far apart they end, and the first part that differs."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.training.exactness_check import GRADIENT, INPUTS, LOSSES, STATE_FILE, trace_file

LIMIT = 1e-12  # for rounding in weights, statistics and metrics, in float64
NOTICEABLE = 1e-10  # for rounding in one part of a step


class Apart(NamedTuple):
    """The largest difference of one type, and the name of its tensor.

    The difference is absolute below 1 and relative above.
    """

    size: float
    name: str

    def rank(self) -> tuple[bool, float]:
        """Return the key by which differences are ordered, where NaN is the largest."""
        return math.isnan(self.size), self.size


class First(NamedTuple):
    """The first part of a training that differs.

    `sample` is a position in the data set, or None for sums over samples.
    """

    step: int
    part: str
    size: float
    sample: int | None

    def meaning(self, *, is_by_bits: bool) -> str:
        """Return the cause of such a difference, and how to fix it.

        `is_by_bits` is true with virtual shards.
        """
        if is_by_bits and self.part != INPUTS:
            return "it depends on the rank, on the number of threads, or on a state of its process"
        if self.part == INPUTS:
            fix = "draw from torch, numpy or random, seeded for each sample"
            return f"a sample depends on the worker that reads it: {fix}"
        if self.part == LOSSES:
            return (
                "the loss of a sample depends on other samples: return one for each, "
                "never a mean or a sum"
            )
        if self.part.startswith(GRADIENT):
            return (
                "outputs and losses are the same, their gradients differ: "
                "something is summed over a shard alone"
            )
        if self.sample is None:
            return "gradients are the same: something else changes it, or has a state of its worker"
        fix = "use nn.BatchNorm2d and nn.Dropout, which are made exact"
        return f"its output for a sample depends on other samples: {fix}"


class Compared(NamedTuple):
    """The differences between a training and that of one worker."""

    weights: Apart
    statistics: Apart
    metrics: Apart
    first: First | None
    limit: float

    @property
    def is_exact(self) -> bool:
        return all(
            kind.size <= self.limit for kind in (self.weights, self.statistics, self.metrics)
        )


def compare(alone: Path, other: Path, parts: Sequence[int], *, is_by_bits: bool) -> Compared:
    """Compare the training in folder `other` with that of one worker.

    `parts` are the numbers of workers of its parts.
    """
    one, two = (torch.load(folder / STATE_FILE, weights_only=True) for folder in (alone, other))
    for state in (one, two):
        metrics = state["metrics"].items()
        state["metrics"] = {
            name: torch.tensor(value, dtype=torch.float64) for name, value in metrics
        }
    weights, statistics, metrics = (
        _distance(one[kind], two[kind]) for kind in ("weights", "statistics", "metrics")
    )
    limit, noticeable = (0.0, 0.0) if is_by_bits else (LIMIT, NOTICEABLE)
    first = first_difference(list(steps(alone, [1])), list(steps(other, parts)), noticeable)
    return Compared(weights, statistics, metrics, first, limit)


def steps(folder: Path, parts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the traces of all workers of each micro-batch, merged by sample."""
    for part, num_workers in enumerate(parts):
        ranks = [
            torch.load(folder / trace_file(rank, part), weights_only=True)
            for rank in range(num_workers)
        ]
        for entries in zip(*ranks, strict=True):
            samples = torch.cat([entry["samples"] for entry in entries])
            order = samples.argsort(stable=True)
            values: dict[str, Tensor] = {}
            for name in max((entry["values"] for entry in entries), key=len):
                rows = torch.cat(
                    [entry["values"][name] for entry in entries if name in entry["values"]]
                )
                if len(rows) == len(samples):
                    values[name] = rows[order]
            yield {**entries[0], "samples": samples[order], "values": values}


def first_difference(
    alone: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]], noticeable: float
) -> First | None:
    """Return the first part, in the order of computation, that differs by more than `noticeable`.

    Returns None if there is none.
    """
    for one, two in zip(alone, other, strict=False):
        step = one["step"] + (0 if one["sums"] else 1)
        if not torch.equal(one["samples"], two["samples"]):
            return First(step, "the samples of the batch", float("inf"), None)
        for name, rows in one["values"].items():
            others = two["values"].get(name)
            if others is not None and len(rows):
                apart = _relative(rows, others, rows[:, 1:]).amax(1)
                if not apart.max() <= noticeable:
                    worst = int(apart.argmax())  # If there is a NaN, it is that one.
                    return First(step, name, float(apart[worst]), int(one["samples"][worst]))
        for name, sums in one["sums"].items():
            if name in two["sums"]:
                apart = _relative(sums, two["sums"][name], sums[1:]).max()
                if not apart <= noticeable:
                    return First(step, name, float(apart), None)
    return None


def _relative(values: Tensor, others: Tensor, scale: Tensor) -> Tensor:
    """Return the difference, relative to a scale above 1.

    Equal infinities and NaN on both sides do not differ.
    """
    is_same = torch.isclose(values, others, rtol=0, atol=0, equal_nan=True)
    return ((values - others).abs() / scale.abs().clamp(min=1)).masked_fill(is_same, 0)


def _distance(one: dict[str, Tensor], two: dict[str, Tensor]) -> Apart:
    sizes = [Apart(0.0, "")]
    for name, value in one.items():
        other = two[name]
        is_same = all(
            torch.equal(of(value), of(other))
            for of in (torch.isnan, torch.nan_to_num, torch.signbit)
        )
        if not is_same:
            # The size for 0 and -0 is the smallest number.
            size = float(_relative(value, other, value).max()) or math.ulp(0.0)
            sizes.append(Apart(size, name))
    return max(sizes, key=Apart.rank)

"""Comparison of two trainings: how far apart they end, and the first part that differs."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.training.exactness_check import (
    GRADIENT,
    INPUTS,
    LOSSES,
    STATE_FILE,
    TraceStep,
    trace_file,
)

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
            hint = "draw from torch, numpy or random, seeded for each sample"
            return f"a sample depends on the worker that reads it: {hint}"
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
            return (
                "gradients are the same: another operation changes it, or keeps a state per worker"
            )
        hint = "use nn.BatchNorm2d and nn.Dropout, which are made exact"
        return f"its output for a sample depends on other samples: {hint}"


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


def compare(
    alone_folder: Path, variant_folder: Path, worker_counts: Sequence[int], *, is_by_bits: bool
) -> Compared:
    """Compare the training in `variant_folder` with that of one worker.

    `worker_counts` are the numbers of workers of its parts.
    """
    alone_state, variant_state = (
        torch.load(folder / STATE_FILE, weights_only=True)
        for folder in (alone_folder, variant_folder)
    )
    for state in (alone_state, variant_state):
        metrics = state["metrics"].items()
        state["metrics"] = {
            name: torch.tensor(value, dtype=torch.float64) for name, value in metrics
        }
    weights, statistics, metrics = (
        _distance(alone_state[kind], variant_state[kind])
        for kind in ("weights", "statistics", "metrics")
    )
    limit, noticeable = (0.0, 0.0) if is_by_bits else (LIMIT, NOTICEABLE)
    difference = first_difference(
        list(steps(alone_folder, [1])), list(steps(variant_folder, worker_counts)), noticeable
    )
    return Compared(weights, statistics, metrics, difference, limit)


def steps(folder: Path, worker_counts: Sequence[int]) -> Iterator[TraceStep]:
    """Yield the traces of all workers of each micro-batch, merged by sample."""
    for part, num_workers in enumerate(worker_counts):
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
    alone: Sequence[TraceStep], variant: Sequence[TraceStep], noticeable: float
) -> First | None:
    """Return the first part, in the order of computation, that differs by more than `noticeable`.

    Returns None if there is none.
    """
    for alone_step, variant_step in zip(alone, variant, strict=False):
        step = alone_step["step"] + (0 if alone_step["sums"] else 1)
        if not torch.equal(alone_step["samples"], variant_step["samples"]):
            return First(step, "the samples of the batch", float("inf"), None)
        for name, rows in alone_step["values"].items():
            variant_rows = variant_step["values"].get(name)
            if variant_rows is not None and len(rows):
                difference = _relative(rows, variant_rows, rows[:, 1:]).amax(1)
                if not difference.max() <= noticeable:
                    worst = int(difference.argmax())  # If there is a NaN, it is that one.
                    return First(
                        step, name, float(difference[worst]), int(alone_step["samples"][worst])
                    )
        for name, sums in alone_step["sums"].items():
            if name in variant_step["sums"]:
                difference = _relative(sums, variant_step["sums"][name], sums[1:]).max()
                if not difference <= noticeable:
                    return First(step, name, float(difference), None)
    return None


def _relative(values: Tensor, references: Tensor, scale: Tensor) -> Tensor:
    """Return the difference, relative to a scale above 1.

    Equal infinities and NaN on both sides do not differ.
    """
    is_same = torch.isclose(values, references, rtol=0, atol=0, equal_nan=True)
    return ((values - references).abs() / scale.abs().clamp(min=1)).masked_fill(is_same, 0)


def _distance(values: dict[str, Tensor], references: dict[str, Tensor]) -> Apart:
    sizes = [Apart(0.0, "")]
    for name, value in values.items():
        reference = references[name]
        is_same = all(
            torch.equal(of(value), of(reference))
            for of in (torch.isnan, torch.nan_to_num, torch.signbit)
        )
        if not is_same:
            # The size for 0 and -0 is the smallest number.
            size = float(_relative(value, reference, value).max()) or math.ulp(0.0)
            sizes.append(Apart(size, name))
    return max(sizes, key=Apart.rank)

"""Two trainings beside each other: how far apart they end, and which part of them was the first to differ."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.training.verification import GRADIENT, INPUTS, LOSSES, STATE_FILE, trace_file

LIMIT = 1e-12  # of what rounding may do to weights, statistics and metrics in float64
NOTICEABLE = 1e-10  # of what rounding may do to one part of a step


class Apart(NamedTuple):
    """The largest difference of a kind, absolute below 1 and relative above, and whose it is."""

    size: float
    name: str


class First(NamedTuple):
    """The first part of a training that differs: `sample` is a position in the data set, None of sums over samples."""

    step: int
    part: str
    size: float
    sample: int | None

    @property
    def meaning(self) -> str:
        """What such a difference comes from, and what helps."""
        if self.part == INPUTS:
            return (
                "what a sample is depends on who reads it: let transforms draw from torch, numpy or random, which are "
                "seeded for each sample, and not from generators of their own"
            )
        if self.part == LOSSES:
            return "the loss of a sample depends on the samples beside it: give each its own, never a mean or a sum"
        if self.part.startswith(GRADIENT):
            return "outputs and losses are the same, and their gradients are not: something adds up over a shard alone"
        if self.sample is None:
            return "gradients are the same: something else changes it, or remembers what its worker has seen"
        return (
            "this layer gives a sample another value beside other samples: normalize by nn.BatchNorm2d, which is made "
            "exact, or by sample; draw random numbers with nn.Dropout"
        )


class Compared(NamedTuple):
    """A training beside that of one worker."""

    weights: Apart
    statistics: Apart
    metrics: Apart
    first: First | None

    @property
    def is_exact(self) -> bool:
        """Whether nothing is further apart than rounding takes it."""
        return all(kind.size <= LIMIT for kind in (self.weights, self.statistics, self.metrics))


def compare(alone: Path, alone_parts: Sequence[int], other: Path, other_parts: Sequence[int]) -> Compared:
    """The training in folder `other` beside the one in `alone`; the parts are numbers of workers, one for each part."""
    one, two = (torch.load(folder / STATE_FILE, weights_only=True) for folder in (alone, other))
    metrics = [
        {name: torch.tensor(value, dtype=torch.float64) for name, value in state["metrics"].items()}
        for state in (one, two)
    ]
    return Compared(
        _apart(one["weights"], two["weights"]),
        _apart(one["statistics"], two["statistics"]),
        _apart(*metrics),
        first_difference(list(steps(alone, alone_parts)), list(steps(other, other_parts))),
    )


def steps(folder: Path, parts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """What all workers of a training noted of each micro-batch, put together by sample."""
    for part, num_workers in enumerate(parts):
        ranks = [torch.load(folder / trace_file(rank, part), weights_only=True) for rank in range(num_workers)]
        for notes in zip(*ranks, strict=True):
            yield _together(notes)


def _together(notes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    samples = torch.cat([note["samples"] for note in notes])
    order = samples.argsort(stable=True)
    values: dict[str, Tensor] = {}
    for name in max((note["values"] for note in notes), key=len):
        rows = torch.cat([note["values"][name] for note in notes if name in note["values"]])
        if len(rows) == len(samples):
            values[name] = rows[order]
    return {**notes[0], "samples": samples[order], "values": values}


def first_difference(alone: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> First | None:
    """The first part, in the order of computation, that differs by more than rounding; None where there is none."""
    for one, two in zip(alone, other, strict=False):
        step = one["step"] + (0 if one["sums"] else 1)
        if not torch.equal(one["samples"], two["samples"]):
            return First(step, "the samples of the batch", float("inf"), None)
        for name, rows in one["values"].items():
            others = two["values"].get(name)
            if others is not None and len(rows):
                apart = _relative(rows, others).amax(1)
                if not apart.max() <= NOTICEABLE:
                    worst = int(apart.nan_to_num(float("inf")).argmax())
                    return First(step, name, float(apart[worst]), int(one["samples"][worst]))
        for name, sums in one["sums"].items():
            if name in two["sums"]:
                apart = _relative(sums[None], two["sums"][name][None]).max()
                if not apart <= NOTICEABLE:
                    return First(step, name, float(apart), None)
    return None


def _relative(rows: Tensor, others: Tensor) -> Tensor:
    """How far rows (B, 2) are apart: absolute where the norm, their last column, is below 1, else relative to it."""
    return (rows - others).abs() / rows[:, 1:].clamp(min=1)


def _apart(one: dict[str, Tensor], two: dict[str, Tensor]) -> Apart:
    worst = Apart(0.0, "")
    for name, value in one.items():
        other = two[name]
        size = float(((value - other).abs() / value.abs().clamp(min=1)).max()) if value.numel() else 0.0
        if value.isnan().any() and torch.equal(value.isnan(), other.isnan()):
            size = 0.0 if torch.equal(value.nan_to_num(), other.nan_to_num()) else size
        if not size <= worst.size:
            worst = Apart(size, name.removeprefix("net."))
    return worst

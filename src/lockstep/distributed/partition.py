"""Positions of a global batch that each rank computes. Integers only: ranks agree without communication."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Shard(NamedTuple):
    """The part `[lo, hi)` of a global batch of `group_size` samples that a rank computes in one pass; may be empty.

    The global batch is that of optimizer step `step` of its epoch. The part is in micro-batch
    `micro_step` of the epoch, which has `size` samples over all ranks. `offset` is the position of
    the global batch in the epoch if that repeats samples, else None.
    """

    epoch: int
    step: int
    micro_step: int
    size: int
    lo: int
    hi: int
    group_size: int
    offset: int | None = None

    @property
    def is_empty(self) -> bool:
        return self.lo == self.hi


def interval(size: int, loads: Sequence[int], rank: int) -> tuple[int, int]:
    """Positions `[lo, hi)` of `size` items that `rank` computes: contiguous, in rank order, each owned once.

    With C the cumulative loads and T their total, lo = ceil(size * C[rank] / T): every shard is the
    floor or the ceiling of the exact one, a load of 0 gets nothing.
    """
    bounds = [0, *accumulate(loads)]
    total = bounds[-1]
    return -(-size * bounds[rank] // total), -(-size * bounds[rank + 1] // total)

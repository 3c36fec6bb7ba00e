"""Positions of a global batch that each rank computes.

They are computed from integers only, so ranks agree without communication.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Shard(NamedTuple):
    """The part `[lo, hi)` of a global batch that a rank computes in one pass. It may be empty.

    The global batch has `group_size` samples and is that of optimizer step `step` of its epoch. The
    part is in micro-batch `micro_step` of the epoch, which has `size` samples over all ranks.
    `offset` is the position of the global batch in the epoch if the epoch repeats samples, else
    None.
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


def interval(size: int, worker_weights: Sequence[int], rank: int) -> tuple[int, int]:
    """Return the positions `[lo, hi)` of `size` items that `rank` computes.

    The intervals are contiguous and in rank order, and each item belongs to one rank. With C the
    cumulative weights and T their total, lo = ceil(size * C[rank] / T). Every shard is the floor or
    the ceiling of the exact size, and a rank of weight 0 gets nothing.
    """
    bounds = [0, *accumulate(worker_weights)]
    total = bounds[-1]
    return -(-size * bounds[rank] // total), -(-size * bounds[rank + 1] // total)

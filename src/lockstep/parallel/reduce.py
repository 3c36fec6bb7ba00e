"""The few collectives of a run. Sums and counts travel; means are made once, from global sums."""

from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

T = TypeVar("T")


def is_distributed() -> bool:
    """True in a process that belongs to a process group, also one of a single process."""
    return dist.is_available() and dist.is_initialized()


def is_lost_rank(error: BaseException) -> bool:
    """Whether a collective failed because another rank did not come, or broke off; gloo has no error of its own."""
    texts = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "timed out waiting")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(text in str(error).lower() for text in texts)
    )


def is_missing_rank(error: BaseException) -> bool:
    """Whether the ranks could not meet: one of them did not write where it can be reached in time."""
    return isinstance(error, dist.DistStoreError)


def sum_over_ranks(counts: Tensor) -> Tensor:
    """A new tensor: the sum of `counts` over all ranks, the same bits on each. Every rank must call it."""
    total = counts.clone()
    if is_distributed():
        dist.all_reduce(total)
    return total


def gather_objects(value: T) -> list[T]:
    """`value` of every rank, in rank order, on every rank. Pickles: for a handful of small objects, never in a step."""
    if not is_distributed():
        return [value]
    values: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values  # pyright: ignore[reportReturnType]


class FlagChannel:
    """The largest flag any rank raised, known to all ranks at the same step, one step late.

    The all-reduce of step t runs beside step t+1 on a gloo group of its own, so that no rank waits for it and a GPU is
    never asked for a value. One process needs no group: its flag comes back after the same one-step delay.
    """

    def __init__(self, timeout: timedelta) -> None:
        group: Any = dist.new_group(backend="gloo", timeout=timeout) if is_distributed() else None
        self._group = group
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None
        self._is_pending = False

    def send(self, flag: int) -> None:
        """Start the exchange of this step. Every rank calls it at the same steps, after `receive`."""
        self._flag.fill_(flag)
        if self._group is not None:
            self._work = dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._is_pending = True

    def receive(self) -> int:
        """The agreed flag of the last `send`; 0 when none is under way."""
        if not self._is_pending:
            return 0
        if self._work is not None:
            self._work.wait()
            self._work = None
        self._is_pending = False
        return int(self._flag.item())

    def agree(self, flag: int) -> int:
        """The largest flag of any rank, now; takes in an exchange that is still under way."""
        earlier = self.receive()
        self.send(max(earlier, flag))
        return self.receive()

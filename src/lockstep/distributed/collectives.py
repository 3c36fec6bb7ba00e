"""The few collectives of a run.

Ranks send sums and counts. Means are computed once, from global sums.

CPU tensors go through shared memory if all ranks are on one machine and called `connect`, else over
gloo. GPU tensors go over NCCL. Like the process group, the state is global to the process: `leave`
ends both.
"""

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

if TYPE_CHECKING:
    from lockstep.distributed.shared_memory import Neighbors

T = TypeVar("T")


class FailedElsewhere(RuntimeError):
    """Ends a rank because another rank failed, which is about to report the cause."""


class VirtualRank(Protocol):
    """One of `world_size` ranks, several of which are threads of a process."""

    world_size: int

    def all_gather(self, row: Tensor) -> Tensor: ...
    def gather_objects(self, value: Any) -> list[Any]: ...


class _ActingRank(threading.local):
    rank: VirtualRank | None = None


_acting = _ActingRank()


@contextmanager
def acting_as(rank: VirtualRank | None) -> Iterator[None]:
    """Make the collectives of this thread those of a virtual rank, or of the process if None."""
    previous_rank, _acting.rank = _acting.rank, rank
    try:
        yield
    finally:
        _acting.rank = previous_rank


def is_distributed() -> bool:
    return _acting.rank is not None or (dist.is_available() and dist.is_initialized())


def world_size() -> int:
    if _acting.rank is not None:
        return _acting.rank.world_size
    return dist.get_world_size() if is_distributed() else 1


def is_lost_rank(error: BaseException) -> bool:
    """Return True if a collective failed because another rank is missing.

    gloo raises a plain RuntimeError in this case.
    """
    phrases = (
        "gloo",
        "nccl",
        "connection closed by peer",
        "connection reset by peer",
        "timed out waiting",
    )
    if not isinstance(error, RuntimeError):
        return False
    message = str(error).lower()
    return isinstance(error, dist.DistError) or any(phrase in message for phrase in phrases)


def is_missing_rank(error: BaseException) -> bool:
    """Return True if the ranks could not connect.

    Either one did not arrive in time, or rank 0 opened no store.
    """
    has_no_store = isinstance(error, dist.DistNetworkError) and "trying to connect" in str(error)
    return has_no_store or isinstance(error, dist.DistStoreError)


_neighbors: "Neighbors | None" = None  # Only ranks that are not alone import its module.


def connect(timeout: timedelta, num_cores: int) -> None:
    """Connect the ranks through shared memory if all are on one machine.

    Rank 0 prints a line if that fails. Every rank of a process group must call it. The launcher
    does not matter, because the ranks compare their machines here. `num_cores` is the number of
    cores that all ranks of this machine may use. If there are fewer cores than ranks, no rank waits
    by polling.
    """
    from lockstep.distributed.shared_memory import Neighbors, Segment, machine

    global _neighbors
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    machines = gather_objects(machine())
    if num_ranks == 1 or None in machines or len(set(machines)) > 1:
        return
    segment, descriptor, error = None, None, ""
    try:
        if rank == 0:
            segment, descriptor = Segment.make(num_ranks)
    except OSError as os_error:
        error = str(os_error)
    processes = gather_objects((os.getpid(), descriptor))
    pid, shared_descriptor = processes[0]
    try:
        if rank > 0 and shared_descriptor is not None:
            segment = Segment.open(pid, shared_descriptor, rank, num_ranks)
    except OSError as os_error:
        error = str(os_error)
    errors = [reason for reason in gather_objects(error) if reason]
    if descriptor is not None:
        os.close(descriptor)
    if segment is not None and not errors:
        _neighbors = Neighbors(
            segment, [pid for pid, _ in processes], timeout, has_cores=num_cores >= num_ranks
        )
    elif rank == 0:
        print(
            f"lockstep: shared memory unavailable, using gloo over TCP: {errors[0]}",
            file=sys.stderr,
            flush=True,
        )


def shares_memory() -> bool:
    return _neighbors is not None


def keep_out_of_graphs() -> None:
    """Exclude collectives through shared memory from the graphs of torch.compile.

    A compiled graph writes not only the row of this rank. It copies the complete segment and writes
    it back, so rows that other ranks wrote in the meantime would be lost.
    """
    from lockstep.distributed.shared_memory import Neighbors

    Neighbors.gather = torch.compiler.disable(  # pyright: ignore[reportAttributeAccessIssue]
        Neighbors.gather
    )
    Neighbors.add_up = torch.compiler.disable(  # pyright: ignore[reportAttributeAccessIssue]
        Neighbors.add_up
    )


def leave() -> None:
    """Leave shared memory and the process group. Ranks that wait for this one fail."""
    global _neighbors
    if _neighbors is not None:
        _neighbors.leave()
    _neighbors = None
    if is_distributed():
        dist.destroy_process_group()


def all_gather(row: Tensor) -> Tensor:
    """Gather the `row` (n,) of every rank as (world_size, n). Every rank must call it.

    Read the result before the next collective.
    """
    if _acting.rank is not None:
        return _acting.rank.all_gather(row)
    if _neighbors is not None and row.device.type == "cpu" and _neighbors.fits(row):
        return _neighbors.gather(row)
    # The output is flat, because gloo rejects any other shape.
    rows = row.new_empty(world_size() * row.numel())
    dist.all_gather_into_tensor(rows, row)
    return rows.view(world_size(), -1)


def longest_row(values: Tensor) -> int:
    """Return the maximum length of a row that `all_gather` sends at once.

    It holds for the dtype and the device of `values`.
    """
    if _neighbors is not None and values.device.type == "cpu":
        return _neighbors.row_bytes // values.element_size()
    return 1 << 22


def add_up(values: Tensor) -> None:
    """Replace `values` (n,) by the sum over all ranks. Every rank must call it.

    The result has the same bits on every rank.
    """
    if _acting.rank is not None:
        values.copy_(_acting.rank.all_gather(values).sum(0))
    elif _neighbors is not None and values.device.type == "cpu":
        _neighbors.add_up(values)
    else:
        dist.all_reduce(values)


def broadcast(values: Iterable[Tensor]) -> None:
    """Replace `values` by those of rank 0, without shared memory. Every rank must call it."""
    with torch.no_grad():
        for value in values:
            buffer = value.contiguous()
            dist.broadcast(buffer, 0)
            value.copy_(buffer)


def sum_over_ranks(counts: Tensor) -> Tensor:
    """Return the sum of `counts` over all ranks. Every rank must call it.

    The result has the same bits on every rank.
    """
    total = counts.clone(memory_format=torch.contiguous_format)
    if is_distributed():
        add_up(total.view(-1))
    return total


def gather_objects(value: T) -> list[T]:
    """Return the `value` of every rank, in rank order, on every rank.

    It pickles the objects. Use it for a handful of small ones, and never in a step.
    """
    if not is_distributed():
        return [value]
    if _acting.rank is not None:
        return _acting.rank.gather_objects(value)
    values: list[T | None] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values  # pyright: ignore[reportReturnType]


class FlagChannel:
    """Returns the largest flag of any rank to all ranks at the same step, one step late.

    The flags of step t are reduced during step t+1, so that no rank waits and no GPU is
    synchronized. This uses shared memory if available, else a separate gloo group. In one process
    the flag is returned after the same delay.
    """

    def __init__(self, timeout: timedelta) -> None:
        self._shared = _neighbors.flags if _neighbors is not None else None
        # An earlier channel may have left a flag pending, on all ranks alike.
        if self._shared is not None and self._shared.is_pending:
            self._shared.wait()
            self._shared.turn()
        needs_group = is_distributed() and self._shared is None
        self._group: Any = dist.new_group(backend="gloo", timeout=timeout) if needs_group else None
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None
        self._is_pending = False

    def send(self, flag: int) -> None:
        """Start the all-reduce of this step.

        Every rank must call it at the same steps, after `receive`.
        """
        if self._shared is not None:
            self._shared.rows(1, torch.int32).by_rank[dist.get_rank()].fill_(flag)
            self._shared.post()
        else:
            self._flag.fill_(flag)
        if self._group is not None:
            self._work = dist.all_reduce(
                self._flag, dist.ReduceOp.MAX, group=self._group, async_op=True
            )
        self._is_pending = True

    def receive(self) -> int:
        """Return the agreed flag of the last `send`, or 0 if none is pending."""
        if not self._is_pending:
            return 0
        self._is_pending = False
        if self._shared is not None:
            self._shared.wait()
            flag = self._shared.rows(1, torch.int32).all_ranks.max()
            self._shared.turn()
            return int(flag.item())
        if self._work is not None:
            self._work.wait()
            self._work = None
        return int(self._flag.item())

    def agree(self, flag: int) -> int:
        """Return the largest flag of any rank immediately, including a pending all-reduce."""
        self.send(max(self.receive(), flag))
        return self.receive()

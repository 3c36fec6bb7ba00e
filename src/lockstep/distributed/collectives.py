"""The few collectives of a run. Sums and counts travel; means are made once, from global sums.

Tensors of a CPU go through shared memory between the ranks of a machine that have met by `connect`, and by gloo between
machines; those of a GPU go by NCCL. Like the process group this is of the whole process: `leave` ends both.
"""

import os
import sys
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from lockstep.distributed.shared_memory import Machine, Neighbours, RankLost, Segment

T = TypeVar("T")


def is_distributed() -> bool:
    """True in a process that belongs to a process group, also one of a single process."""
    return dist.is_available() and dist.is_initialized()


def is_lost_rank(error: BaseException) -> bool:
    """Whether a collective failed because another rank did not come, or broke off; gloo has no error of its own."""
    texts = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "timed out waiting")
    return isinstance(error, dist.DistError | RankLost) or (
        isinstance(error, RuntimeError) and any(text in str(error).lower() for text in texts)
    )


def is_missing_rank(error: BaseException) -> bool:
    """Whether the ranks could not meet: one of them did not write where it can be reached in time."""
    return isinstance(error, dist.DistStoreError)


class _Exchange:
    """Tensors of a CPU between all ranks: the machine of each in rank order, then its first rank with the others'."""

    def __init__(self, here: Neighbours | None, between: Any) -> None:
        """`here` is None on a machine with one rank; `between` is the group of the first ranks, None of one machine."""
        self.here = here
        self.between = between
        self._talks_outside = between is not None and (here is None or here.is_first)

    def gather(self, row: Tensor) -> Tensor:
        """`row` (n,) of every rank as (world_size, n), which counts until the next exchange."""
        if self.between is None and self.here is not None and self.here.fits(row.numel(), row.dtype):
            return self.here.gather(row)
        rows = row.new_zeros(dist.get_world_size(), row.numel())
        rows[dist.get_rank()] = row
        self.add_up(rows.view(-1))
        return rows

    def add_up(self, values: Tensor) -> None:
        """Replace `values` (n,) by the sum over all ranks, the same bits on each."""
        if self.here is not None:
            self.here.add_up(values)
        if self._talks_outside:
            dist.all_reduce(values, group=self.between)
        if self.between is not None and self.here is not None:
            self.here.spread(values)


_exchange: _Exchange | None = None


def connect(timeout: timedelta) -> None:
    """Have the ranks of each machine share memory, where they can; rank 0 says in a line why they cannot.

    Every rank of a process group must call it. Who shares memory with whom is what the ranks find out here: how they
    were started does not matter.
    """
    global _exchange
    rank = dist.get_rank()
    places = gather_objects(Machine.here())
    if None in places:
        return
    machines = [[r for r, other in enumerate(places) if other == place] for place in dict.fromkeys(places)]
    ranks = next(machine for machine in machines if rank in machine)
    if max(map(len, machines)) == 1:
        return
    segment, address, fault = None, None, ""
    try:
        if rank == ranks[0] and len(ranks) > 1:
            segment, address = Segment.make(len(ranks))
    except OSError as error:
        fault = str(error)
    met = gather_objects((os.getpid(), address))
    try:
        made = met[ranks[0]][1]
        if segment is None and made is not None:
            segment = Segment.open(made, ranks.index(rank), len(ranks))
    except OSError as error:
        fault = str(error)
    faults = [fault for fault in gather_objects(fault) if fault]
    if address is not None:
        os.close(address.descriptor)
    if faults:
        if rank == 0:
            text = f"lockstep: workers of a machine talk by sockets, because they cannot share memory: {faults[0]}"
            print(text, file=sys.stderr, flush=True)
        return
    firsts = [machine[0] for machine in machines]
    between = dist.new_group(firsts, backend="gloo", timeout=timeout) if len(machines) > 1 else None
    here = Neighbours(segment, ranks, [met[r][0] for r in ranks], timeout) if segment is not None else None
    _exchange = _Exchange(here, between)


def shares_memory() -> bool:
    """Whether ranks have met by `connect` and could; the same on all of them."""
    return _exchange is not None


def leave() -> None:
    """Leave the process group, if there is one; whoever waits for this rank hears of it."""
    global _exchange
    if _exchange is not None and _exchange.here is not None:
        _exchange.here.leave()
    _exchange = None
    if is_distributed():
        dist.destroy_process_group()


def all_gather(row: Tensor) -> Tensor:
    """`row` (n,) of every rank as (world_size, n), to be read before the next collective. Every rank must call it."""
    if _exchange is not None and row.device.type == "cpu":
        return _exchange.gather(row)
    world_size = dist.get_world_size()
    rows = row.new_empty(world_size * row.numel())  # flat: gloo refuses any other output shape
    dist.all_gather_into_tensor(rows, row)
    return rows.view(world_size, -1)


def add_up(values: Tensor) -> None:
    """Replace `values` (n,) by the sum over all ranks, the same bits on each. Every rank must call it."""
    if _exchange is not None and values.device.type == "cpu":
        _exchange.add_up(values)
    else:
        dist.all_reduce(values)


def sum_over_ranks(counts: Tensor) -> Tensor:
    """A new tensor: the sum of `counts` over all ranks, the same bits on each. Every rank must call it."""
    total = counts.clone(memory_format=torch.contiguous_format)
    if is_distributed():
        add_up(total.view(-1))
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

    The flags of step t travel beside step t+1, so that no rank waits for them and a GPU is never asked for a value: in
    memory that all ranks share, else on a gloo group of their own. One process needs neither: its flag comes back after
    the same one-step delay.
    """

    def __init__(self, timeout: timedelta) -> None:
        is_one_machine = _exchange is not None and _exchange.between is None
        here = _exchange.here if _exchange is not None and is_one_machine else None
        self._shared = here.flags if here is not None else None
        if self._shared is not None and self._shared.is_pending:  # of an earlier channel, on all ranks alike
            self._shared.wait()
            self._shared.turn()
        needs_group = is_distributed() and self._shared is None
        self._group: Any = dist.new_group(backend="gloo", timeout=timeout) if needs_group else None
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None
        self._is_pending = False

    def send(self, flag: int) -> None:
        """Start the exchange of this step. Every rank calls it at the same steps, after `receive`."""
        if self._shared is not None:
            self._shared.rows(1, torch.int32).mine.fill_(flag)
            self._shared.post()
        else:
            self._flag.fill_(flag)
        if self._group is not None:
            self._work = dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._is_pending = True

    def receive(self) -> int:
        """The agreed flag of the last `send`; 0 when none is under way."""
        if not self._is_pending:
            return 0
        self._is_pending = False
        if self._shared is not None:
            self._shared.wait()
            flag = self._shared.rows(1, torch.int32).every.max()
            self._shared.turn()
            return int(flag.item())
        if self._work is not None:
            self._work.wait()
            self._work = None
        return int(self._flag.item())

    def agree(self, flag: int) -> int:
        """The largest flag of any rank, now; takes in an exchange that is still under way."""
        earlier = self.receive()
        self.send(max(earlier, flag))
        return self.receive()

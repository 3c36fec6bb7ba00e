"""Sums and gathers between the processes of one machine, through memory that they share.

A message by gloo costs half a millisecond, whatever its size; here it costs a copy, a semaphore and a copy. Every
ordered pair of ranks has a semaphore: whoever has written its row posts one to each of the others, and waits for one
from each of them. Rows alternate between two places. A rank writes to a place again only after it has heard of the
exchange in between from all others, and each of them says that after it has read the place.

Processors may order memory weakly, and semaphores order it (semaphores.py). So nothing here reads a number that another
process writes without a semaphore in between, but the flag that a rank has left, which is only a hint.

The memory has no name (memfd_create): others open it through /proc while its maker waits, and it ends with the last.
"""

import ctypes
import mmap
import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.distributed.semaphores import Semaphores
from lockstep.system.hardware import num_cores

LINE = 64  # bytes: what processors share at once, and more than a semaphore of any C library
ROW_BYTES = 1 << 20  # at most, of a rank; a longer tensor goes in parts
MOST_BYTES = 1 << 25  # of all rows together
SMALL_BYTES = 1 << 14  # every rank adds up all of so much; of more, each adds up a part
FLAG_BYTES = LINE
SPIN_S = 2e-4  # a rank asks so long before it sleeps, where each has a core of its own: about what waking costs
SLICE_S = 0.1  # a rank that sleeps looks so often whether the others live


class RankLost(RuntimeError):
    """Another rank of this machine does not come to an exchange: it has ended, it left, or it is late."""


def machine() -> tuple[str, str, int] | None:
    """What processes that can share memory have in common: host, boot, and the namespace in which /proc finds them.

    None where memory cannot be shared this way, e.g. outside of Linux.
    """
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return None
    try:
        Semaphores()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return socket.gethostname(), boot, os.stat("/proc/self/ns/pid").st_ino
    except (OSError, AttributeError):
        return None


class Address(NamedTuple):
    """Where a segment is found: an open file of its maker, and what stands at its beginning."""

    pid: int
    descriptor: int
    token: str


def _layout(num_ranks: int) -> tuple[list[tuple[int, int]], int]:
    """Offset and bytes of a row, of the flags and of the tensors, and the bytes of the whole segment.

    Each channel has the semaphores of every ordered pair of ranks, and two rows of every rank.
    """
    end = LINE * (1 + num_ranks)
    channels = []
    for row_bytes in (FLAG_BYTES, max(LINE, min(ROW_BYTES, MOST_BYTES // (2 * num_ranks)) // LINE * LINE)):
        channels.append((end, row_bytes))
        end += num_ranks * (num_ranks * LINE + 2 * row_bytes)
    return channels, end


class Segment:
    """Memory of the ranks of one machine, as one of them has mapped it: a token, a line for each rank, two channels."""

    def __init__(self, descriptor: int, rank: int, num_ranks: int) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self.channels, size = _layout(num_ranks)
        self.memory = mmap.mmap(descriptor, size)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    @classmethod
    def make(cls, num_ranks: int) -> tuple["Segment", Address]:
        """New memory of rank 0, open until `Address.descriptor` is closed. Raises OSError where there is none."""
        descriptor = os.memfd_create("lockstep", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, _layout(num_ranks)[1])  # else a full memory ends a process by SIGBUS
            segment = cls(descriptor, 0, num_ranks)
            token = secrets.token_hex(LINE // 2)
            segment.memory[:LINE] = token.encode()
            semaphores = Semaphores()
            for offset, _ in segment.channels:
                for pair in range(num_ranks**2):
                    semaphores.make(segment.start + offset + pair * LINE)
        except OSError:
            os.close(descriptor)
            raise
        return segment, Address(os.getpid(), descriptor, token)

    @classmethod
    def open(cls, address: Address, rank: int, num_ranks: int) -> "Segment":
        """Map what another rank has made. Raises OSError where this process may not."""
        path = f"/proc/{address.pid}/fd/{address.descriptor}"
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            segment = cls(descriptor, rank, num_ranks)
        except ValueError as error:
            raise OSError(f"{path} is another file") from error
        finally:
            os.close(descriptor)
        if segment.memory[:LINE].decode(errors="replace") != address.token:
            raise OSError(f"{path} is another file")
        return segment

    def leave(self) -> None:
        """Tell the others that this rank comes to no exchange any more."""
        self.memory[LINE * (1 + self.rank)] = 1

    def has_left(self, rank: int) -> bool:
        """Whether a rank has told the others that it comes to no exchange any more."""
        return self.memory[LINE * (1 + rank)] == 1


class Neighbour(NamedTuple):
    """Another rank, and its process: the kernel signals the end of it by `descriptor`."""

    rank: int
    pid: int
    descriptor: int

    def has_ended(self) -> bool:
        """Whether the process is gone, or waits for its parent to take note."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(0))


class Rows(NamedTuple):
    """Shared memory as tensors: the row (n,) that this rank writes, and those of all ranks, (num_ranks, n)."""

    mine: Tensor
    every: Tensor
    by_rank: Sequence[Tensor]


class Channel:
    """Exchanges of one kind, one after the other: all ranks of the machine take part in each, in the same order."""

    def __init__(
        self,
        segment: Segment,
        offset: int,
        row_bytes: int,
        neighbours: Sequence[Neighbour | None],
        *,
        timeout: timedelta,
        spin_s: float,
    ) -> None:
        rank, size = segment.rank, segment.num_ranks
        self._segment = segment
        self._neighbours = neighbours
        self._timeout = timeout
        self._spin_s = spin_s
        self._semaphores = Semaphores()
        others = [other for other in range(size) if other != rank]
        start = segment.start + offset
        self._to = [start + (other * size + rank) * LINE for other in others]
        self._from = [(start + (rank * size + other) * LINE, other) for other in others]
        self._bytes = torch.frombuffer(
            segment.memory, dtype=torch.uint8, offset=offset + size * size * LINE, count=2 * size * row_bytes
        ).view(2, size, row_bytes)
        self._number = 0
        self._views: dict[tuple[int, int, torch.dtype], Rows] = {}
        self.row_bytes = row_bytes
        self.is_pending = False

    def rows(self, length: int, dtype: torch.dtype) -> "Rows":
        """Rows of the next exchange. What others write is there after it, until this rank posts the one after that."""
        key = (self._number & 1, length, dtype)
        rows = self._views.get(key)
        if rows is None:
            every = self._bytes[key[0], :, : length * dtype.itemsize].view(dtype)
            rows = self._views[key] = Rows(every[self._segment.rank], every, every.unbind())
        return rows

    def turn(self) -> None:
        """Go on to the other place: the rows of this exchange have been posted for the last time."""
        self._number += 1

    def post(self) -> None:
        """Tell all others that this rank has written."""
        for address in self._to:
            self._semaphores.post(address)
        self.is_pending = True

    def wait(self) -> None:
        """Wait until all other ranks have posted. Raises RankLost when one of them does not within the timeout."""
        for address, other in self._from:
            if not self._semaphores.has_taken(address):
                self._await(address, other)
        self.is_pending = False

    def _await(self, address: int, other: int) -> None:
        has_taken = self._semaphores.has_taken
        started = time.monotonic()
        while time.monotonic() - started < self._spin_s:
            os.sched_yield()  # the one that is waited for may stand behind this process, on the same core
            if has_taken(address):
                return
        limit_s = self._timeout.total_seconds()
        while not self._semaphores.wait(address, SLICE_S):
            late = self._lost(other, is_late=time.monotonic() - started > limit_s)
            if late and not has_taken(address):  # it may have posted, and ended then
                raise RankLost(late)

    def _lost(self, other: int, *, is_late: bool) -> str:
        neighbour = self._neighbours[other]
        assert neighbour is not None, "a rank does not wait for itself"
        who = f"rank {neighbour.rank}"
        if neighbour.has_ended():
            return f"the process of {who} (pid {neighbour.pid}) has ended"
        if self._segment.has_left(other):
            return f"{who} has left"
        return f"{who} did not come within {self._timeout.total_seconds():g} s (strategy.timeout_s)" if is_late else ""


class Neighbours:
    """The ranks of one machine: what they say to each other. Every one of them must call everything, in one order."""

    def __init__(self, segment: Segment, pids: Sequence[int], timeout: timedelta) -> None:
        """`pids` are the processes of the ranks."""
        self._segment = segment
        self._others = [
            None if rank == segment.rank else Neighbour(rank, pid, os.pidfd_open(pid)) for rank, pid in enumerate(pids)
        ]
        spin_s = SPIN_S if num_cores() >= len(pids) else 0.0
        flags, tensors = (
            Channel(segment, offset, row_bytes, self._others, timeout=timeout, spin_s=spin_s)
            for offset, row_bytes in segment.channels
        )
        self.flags = flags
        self._tensors = tensors

    def leave(self) -> None:
        """Come to no exchange any more: whoever waits for this rank is told at once."""
        self._segment.leave()
        for other in self._others:
            if other is not None:
                with suppress(OSError):
                    os.close(other.descriptor)

    def fits(self, row: Tensor) -> bool:
        """Whether `gather` takes a row so long."""
        return row.numel() * row.element_size() <= self._tensors.row_bytes

    def gather(self, row: Tensor) -> Tensor:
        """`row` (n,) of every rank as (num_ranks, n), in memory that counts until the next call."""
        return self._gather(row).every

    def add_up(self, values: Tensor) -> None:
        """Replace `values` (n,) by the sum over all ranks, added in rank order: the same bits on each."""
        for part in self._parts(values):
            if part.numel() * part.element_size() <= SMALL_BYTES:
                _sum(self._gather(part).by_rank, out=part)
            else:
                self._add_up_by_parts(part)

    def _parts(self, values: Tensor) -> Sequence[Tensor]:
        most = self._tensors.row_bytes // values.element_size()
        return values.split(most) if values.numel() > most else (values,)

    def _gather(self, row: Tensor) -> Rows:
        rows = self._tensors.rows(row.numel(), row.dtype)
        rows.mine.copy_(row)
        self._exchange()
        self._tensors.turn()
        return rows

    def _add_up_by_parts(self, values: Tensor) -> None:
        """Each rank adds up a part of all rows, in the row of its own, from where the others take it."""
        rank, num_ranks = self._segment.rank, self._segment.num_ranks
        mine, every, _ = self._tensors.rows(values.numel(), values.dtype)
        size = -(-values.numel() // num_ranks)
        bounds = [min(size * number, values.numel()) for number in range(num_ranks + 1)]
        lo, hi = bounds[rank], bounds[rank + 1]
        mine[:lo].copy_(values[:lo])
        mine[hi:].copy_(values[hi:])
        self._exchange()
        pieces = [values[lo:hi] if other == rank else every[other, lo:hi] for other in range(num_ranks)]
        _sum(pieces, out=mine[lo:hi])  # nobody else reads or writes there yet
        self._exchange()
        self._tensors.turn()
        for other in range(num_ranks):
            part = slice(bounds[other], bounds[other + 1])
            values[part].copy_(every[other, part])

    def _exchange(self) -> None:
        self._tensors.post()
        self._tensors.wait()


def _sum(rows: Sequence[Tensor], *, out: Tensor) -> None:
    """One after the other, from the first: not by torch.sum, whose order is its own."""
    torch.add(rows[0], rows[1], out=out)
    for row in rows[2:]:
        out.add_(row)

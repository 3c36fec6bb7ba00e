"""Sums and gathers between the processes of one machine, through shared memory.

A collective over gloo costs half a millisecond at any size. Here it costs two copies and a
semaphore. Every ordered pair of ranks has a semaphore. A rank writes its row, posts one semaphore
to each other rank, and waits for one from each. Rows alternate between two buffers. A rank reuses a
buffer only after the collective in between. Every other rank starts that one only after it has read
the buffer.

Semaphores order memory, also on weakly ordered processors (POSIX, section 4.12, memory
synchronization). So every value that another process writes is read after a semaphore, except the
flag of an exited rank, which is only a hint.

The memory has no name (memfd_create). Ranks open it through /proc while its creator waits, and the
last exit frees it.
"""

import ctypes
import math
import mmap
import os
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
from torch import distributed as dist

LINE = 64  # bytes of a cache line, more than a semaphore of any C library
ROW_BYTES = 1 << 20  # The maximum applies to one rank. A longer tensor is sent in parts.
MAX_BYTES = 1 << 25  # maximum for all rows together
# A rank with its own core polls this long before it sleeps: about as long as a wake-up takes.
SPIN_S = 2e-4
SLICE_S = 0.1  # A sleeping rank checks at this interval that the others are alive.


class RankLost(dist.DistError):
    """Another rank of this machine missed a collective: it has died, exited, or is late."""


def machine() -> tuple[str, str, int] | None:
    """Return the host, the boot and the process namespace of this process.

    Processes that agree on all three can share memory. Returns None if this one cannot.
    """
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return None
    try:
        Semaphores()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return socket.gethostname(), boot, os.stat("/proc/self/ns/pid").st_ino
    except (OSError, AttributeError):  # There is no /proc, or the C library has no sem_clockwait.
        return None


class Semaphores:
    """POSIX semaphores of the C library, by address.

    Python's semaphores have names and cost more. `post` and `has_taken` keep Python's lock, because
    they never wait.
    """

    def __init__(self) -> None:
        gil_library, plain_library = ctypes.PyDLL(None), ctypes.CDLL(None)
        self._init = gil_library.sem_init
        self.post = gil_library.sem_post
        self._try = gil_library.sem_trywait
        # The function sem_clockwait exists since glibc 2.30. sem_timedwait follows the adjustable
        # clock.
        self._wait = plain_library.sem_clockwait
        self._init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
        self.post.argtypes = self._try.argtypes = (ctypes.c_void_p,)
        self._wait.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_long))

    def make(self, address: int) -> None:
        """Initialize a semaphore to zero, shared between processes. Raises OSError."""
        if self._init(address, 1, 0):
            raise OSError("sem_init failed")

    def has_taken(self, address: int) -> bool:
        """Lower the count by one if it is above zero, and return whether it was."""
        return self._try(address) == 0

    def wait(self, address: int, max_s: float) -> bool:
        """Wait at most `max_s` to lower the count by one, and return whether it was lowered.

        A signal ends the wait, too.
        """
        until = time.monotonic() + max_s
        seconds = math.floor(until)
        # This is a struct timespec.
        limit = (ctypes.c_long * 2)(seconds, int((until - seconds) * 1e9))
        return self._wait(address, time.CLOCK_MONOTONIC, limit) == 0


def _layout(num_ranks: int) -> tuple[list[tuple[int, int]], int]:
    """Lay out the channels for flags and for tensors in a segment.

    Returns the (offset, bytes of a row) of each channel, and the bytes of the whole segment. A
    channel holds the semaphores of every ordered pair of ranks, and two rows of every rank.
    """
    end = LINE * num_ranks
    channels = []
    max_row_bytes = min(ROW_BYTES, MAX_BYTES // (2 * num_ranks))
    for row_bytes in (LINE, max(LINE, max_row_bytes // LINE * LINE)):
        channels.append((end, row_bytes))
        end += num_ranks * (num_ranks * LINE + 2 * row_bytes)
    return channels, end


class Segment:
    """The shared memory of the ranks of one machine, as one rank has mapped it.

    It has a cache line for each rank, then two channels.
    """

    def __init__(self, descriptor: int, rank: int, num_ranks: int) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self.channels, size = _layout(num_ranks)
        self.memory = mmap.mmap(descriptor, size)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    @classmethod
    def make(cls, num_ranks: int) -> tuple["Segment", int]:
        """Allocate the segment on rank 0. Raises OSError.

        Returns the segment and its file descriptor, which the caller closes.
        """
        descriptor = os.memfd_create("lockstep", os.MFD_CLOEXEC)
        try:
            # Otherwise SIGBUS would end a process when the memory is full.
            os.posix_fallocate(descriptor, 0, _layout(num_ranks)[1])
            segment = cls(descriptor, 0, num_ranks)
            semaphores = Semaphores()
            for offset, _ in segment.channels:
                for pair in range(num_ranks**2):
                    semaphores.make(segment.start + offset + pair * LINE)
        except OSError:
            os.close(descriptor)
            raise
        return segment, descriptor

    @classmethod
    def open(cls, pid: int, descriptor: int, rank: int, num_ranks: int) -> "Segment":
        """Map the segment that is open in process `pid`.

        Raises OSError if this process may not.
        """
        segment_descriptor = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(segment_descriptor, rank, num_ranks)
        finally:
            os.close(segment_descriptor)

    def leave(self) -> None:
        """Mark this rank as one that joins no further collective."""
        self.memory[LINE * self.rank] = 1

    def has_left(self, rank: int) -> bool:
        return self.memory[LINE * rank] == 1


class Rows(NamedTuple):
    """The rows of a collective: (num_ranks, n), and by rank (n,)."""

    all_ranks: Tensor
    by_rank: Sequence[Tensor]


class Channel:
    """Consecutive collectives of one type.

    All ranks of the machine take part in each, in the same order.
    """

    def __init__(
        self,
        segment: Segment,
        offset: int,
        row_bytes: int,
        pids: Sequence[int],
        pidfds: Sequence[int],
        timeout_s: float,
        spin_s: float,
    ) -> None:
        rank, size = segment.rank, segment.num_ranks
        self._segment = segment
        self._pids, self._pidfds = pids, pidfds
        self._timeout_s = timeout_s
        self._spin_s = spin_s
        self._semaphores = Semaphores()
        start, peers = segment.start + offset, [peer for peer in range(size) if peer != rank]
        self._to = [start + (peer * size + rank) * LINE for peer in peers]
        self._from = [(start + (rank * size + peer) * LINE, peer) for peer in peers]
        self._bytes = torch.frombuffer(
            segment.memory,
            dtype=torch.uint8,
            offset=offset + size * size * LINE,
            count=2 * size * row_bytes,
        ).view(2, size, row_bytes)
        self._number = 0
        # Creating views costs more than a collective.
        self._views: dict[tuple[int, int, torch.dtype], Rows] = {}
        self.row_bytes = row_bytes
        self.is_pending = False

    def rows(self, length: int, dtype: torch.dtype) -> Rows:
        """Return the rows of the next collective, with n = `length`.

        This rank writes its row before it posts.
        """
        key = (self._number & 1, length, dtype)
        if key not in self._views:
            all_rows = self._bytes[key[0], :, : length * dtype.itemsize].view(dtype)
            self._views[key] = Rows(all_rows, all_rows.unbind())
        return self._views[key]

    def turn(self) -> None:
        """Switch to the other buffer.

        The rows of this collective stay readable until the next one.
        """
        self._number += 1

    def post(self) -> None:
        """Signal to all other ranks that this rank has written its row."""
        for address in self._to:
            self._semaphores.post(address)
        self.is_pending = True

    def wait(self) -> None:
        """Wait until all other ranks have posted.

        Raises RankLost if one of them does not post within the timeout.
        """
        for address, peer in self._from:
            if not self._semaphores.has_taken(address):
                self._await(address, peer)
        self.is_pending = False

    def _await(self, address: int, peer: int) -> None:
        has_taken = self._semaphores.has_taken
        start = time.monotonic()
        while time.monotonic() - start < self._spin_s:
            os.sched_yield()  # The awaited rank may be queued on this core.
            if has_taken(address):
                return
        while not self._semaphores.wait(address, SLICE_S):
            message = self._loss_message(peer, is_late=time.monotonic() - start > self._timeout_s)
            if message:
                if has_taken(address):  # It posted before it died.
                    return
                raise RankLost(message)

    def _loss_message(self, peer: int, *, is_late: bool) -> str:
        poll = select.poll()
        poll.register(self._pidfds[peer], select.POLLIN)
        if poll.poll(0):  # The process is gone, or a zombie.
            return f"the process of rank {peer} (pid {self._pids[peer]}) has ended"
        if self._segment.has_left(peer):
            return f"rank {peer} has exited"
        if not is_late:
            return ""
        return f"rank {peer} did not arrive within {self._timeout_s:g} s (strategy.timeout_s)"


class Neighbors:
    """The ranks of one machine, which must all make the same calls in the same order.

    If `has_cores`, each rank has its own core and may poll for some time.
    """

    def __init__(
        self, segment: Segment, pids: Sequence[int], timeout: timedelta, *, has_cores: bool
    ) -> None:
        self._segment = segment
        self._pidfds = [os.pidfd_open(pid) for pid in pids]
        spin_s = SPIN_S if has_cores else 0.0
        self.flags, self._tensors = (
            Channel(segment, offset, row_bytes, pids, self._pidfds, timeout.total_seconds(), spin_s)
            for offset, row_bytes in segment.channels
        )
        self.row_bytes = self._tensors.row_bytes

    def leave(self) -> None:
        """Join no further collective. A rank that waits for this one fails immediately."""
        self._segment.leave()
        for descriptor in self._pidfds:
            with suppress(OSError):
                os.close(descriptor)

    def fits(self, row: Tensor) -> bool:
        return row.numel() * row.element_size() <= self.row_bytes

    def gather(self, row: Tensor) -> Tensor:
        """Gather the `row` (n,) of every rank as (num_ranks, n).

        The memory of the result is valid until the next call.
        """
        return self._gather(row).all_ranks

    def _gather(self, row: Tensor) -> Rows:
        rows = self._tensors.rows(row.numel(), row.dtype)
        rows.by_rank[self._segment.rank].copy_(row)
        self._tensors.post()
        self._tensors.wait()
        self._tensors.turn()
        return rows

    def add_up(self, values: Tensor) -> None:
        """Replace `values` (n,) by the sum over all ranks.

        Rows are added in rank order, so every rank has the same bits.
        """
        chunks: Sequence[Tensor] = [values]
        if not self.fits(values):
            chunks = values.split(self.row_bytes // values.element_size())
        for chunk in chunks:
            first, second, *later_rows = self._gather(chunk).by_rank
            torch.add(first, second, out=chunk)
            for row in later_rows:  # The function torch.sum guarantees no order.
                chunk.add_(row)

"""Collectives through shared memory: every rank has the same bits, and none waits for ever."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lockstep.distributed import collectives, gradients, shared_memory
from lockstep.distributed.batch_norm import ExactBatchNorm
from lockstep.distributed.collectives import FlagChannel, add_up, all_gather, is_lost_rank
from lockstep.distributed.shared_memory import Neighbours, RankLost, Segment
from lockstep.system.hardware import num_cores
from tests.support.commands import Command
from tests.support.harness import PATIENCE_S, ROOT, wait_until
from tests.support.processes import TIMEOUT, Ranks

LENGTHS = (1, 129, 100_003, 600_001)  # elements: one, a row of a batch norm, an odd row, several rows
SHORT, LONG = timedelta(seconds=2), timedelta(seconds=10 * PATIENCE_S)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's")


def values_of(rank: int, length: int, dtype: torch.dtype) -> Tensor:
    """Numbers of very different size: added in another order they give other bits."""
    source = torch.Generator().manual_seed(rank)
    size = 10.0 ** torch.randint(-3, 4, (length,), generator=source, dtype=torch.float64)
    return (torch.randn(length, generator=source, dtype=torch.float64) * size).to(dtype)


def in_rank_order(world_size: int, length: int, dtype: torch.dtype) -> Tensor:
    return functools.reduce(torch.add, (values_of(rank, length, dtype) for rank in range(world_size)))


def sums(lengths: tuple[int, ...], dtype: torch.dtype) -> tuple[bool, list[Tensor]]:
    found = [values_of(dist.get_rank(), length, dtype) for length in lengths]
    for values in found:
        add_up(values)
    return collectives.shares_memory(), found


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sums_are_made_in_rank_order_so_that_every_rank_has_the_same_bits(
    ranks: Ranks, world_size: int, dtype: torch.dtype
) -> None:
    expected = [in_rank_order(world_size, length, dtype) for length in LENGTHS]
    for shares_memory, found in ranks.run(world_size, sums, LENGTHS, dtype):
        assert shares_memory
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def many_gathers(is_slow: bool) -> bool:
    """Gathers and sums in turn, each rank in its own time, compared number by number."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    others, is_equal = torch.arange(world_size).view(-1, 1), True
    source = torch.Generator().manual_seed(rank)
    for step in range(300):
        if is_slow and torch.rand((), generator=source) < 0.2:
            time.sleep(float(torch.rand((), generator=source)) * 0.01)
        length = 1 + step * 37 % 6000
        rows = all_gather(torch.full((length,), float(step * 10 + rank)))
        is_equal &= bool((rows == step * 10 + others).all())
        total = torch.full((length,), rank + step, dtype=torch.int64)
        add_up(total)
        is_equal &= bool((total == others.sum() + step * world_size).all())
    return is_equal


@pytest.mark.processes
@pytest.mark.parametrize("is_slow", [False, True])
def test_no_rank_reads_early_or_overwrites_a_row_that_another_still_reads(ranks: Ranks, is_slow: bool) -> None:
    assert ranks.run(3, many_gathers, is_slow) == [True] * 3


def flags_of_two_channels() -> list[int]:
    rank = dist.get_rank()
    first = FlagChannel(TIMEOUT)
    first.send(rank)
    second = FlagChannel(TIMEOUT)  # the pending flags are those of a fit that has ended
    second.send(10 + rank)
    return [second.receive(), second.agree(20 + rank)]


@pytest.mark.processes
def test_a_new_flag_channel_ignores_pending_flags_of_an_old_one(ranks: Ranks) -> None:
    assert ranks.run(2, flags_of_two_channels) == [[11, 21], [11, 21]]


# -- several machines --------------------------------------------------------------------------------------------------


def as_on_machines(names: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call `function` in ranks on the machines `names`, a letter for each."""
    collectives._neighbours = None  # that of `Ranks`
    here = names[dist.get_rank()], "", 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_memory, "machine", lambda: here)
        collectives.connect(TIMEOUT, num_cores())
    return collectives.shares_memory(), function(*args)


def exchanged() -> tuple[list[Tensor], Tensor, int]:
    rank = dist.get_rank()
    rows = all_gather(torch.arange(5.0) + 100 * rank).clone()
    flags = FlagChannel(TIMEOUT).agree(rank + 1)
    return sums(LENGTHS, torch.float64)[1], rows, flags


@pytest.mark.processes
@pytest.mark.parametrize(("names", "has_memory"), [("aab", False), ("aaa", True)])
def test_ranks_of_one_machine_share_memory_and_those_of_several_use_gloo_with_one_result(
    ranks: Ranks, names: str, has_memory: bool
) -> None:
    results = ranks.run(3, as_on_machines, names, exchanged)
    expected = [in_rank_order(3, length, torch.float64) for length in LENGTHS]
    for shares_memory, (found, rows, flag) in results:
        assert (shares_memory, flag) == (has_memory, 3)
        assert torch.equal(rows, torch.stack([torch.arange(5.0) + 100 * rank for rank in range(3)]))
        for value, first, exact in zip(found, results[0][1][0], expected, strict=True):
            assert torch.equal(value, first), "every rank has the same bits"
            torch.testing.assert_close(value, exact, rtol=1e-12, atol=1e-9)


# -- without shared memory --------------------------------------------------------------------------------------------


def refused(*args: object) -> None:
    raise OSError(28, "No space left on device")


def refused_memory(refusing_rank: int) -> tuple[bool, str, float]:
    """What is printed, and a sum, when one rank gets no memory."""
    collectives._neighbours = None
    text: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == refusing_rank:
            patch.setattr(Segment, "make" if refusing_rank == 0 else "open", refused)
        patch.setattr(sys.stderr, "write", text.append)
        collectives.connect(TIMEOUT, num_cores())
    total = torch.ones(3)
    add_up(total)
    return collectives.shares_memory(), "".join(text), total[0].item()


@pytest.mark.processes
@pytest.mark.parametrize("refusing_rank", [0, 1])
def test_ranks_without_memory_all_use_gloo_and_rank_0_prints_why(ranks: Ranks, refusing_rank: int) -> None:
    (has_memory, line, total), other = ranks.run(2, refused_memory, refusing_rank)
    assert "No space left on device" in line
    assert (has_memory, total) == (False, 2.0)
    assert other == (False, "", 2.0)


def test_memory_is_taken_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a full memory would end a process by SIGBUS in the middle of a run."""
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", refused)
    with pytest.raises(OSError, match="No space"):
        Segment.make(2)
    assert len(os.listdir("/proc/self/fd")) == before


# -- a rank that does not come -----------------------------------------------------------------------------------------


def pair(pid: int, timeout: timedelta) -> tuple[Neighbours, Segment]:
    """Rank 0 of two, whose other one is the process `pid`."""
    segment, descriptor = Segment.make(2)
    other = Segment.open(os.getpid(), descriptor, 1, 2)
    os.close(descriptor)
    return Neighbours(segment, (os.getpid(), pid), timeout, has_cores=False), other


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", str(PATIENCE_S)]) as process:
        yield process
        process.kill()


LOSSES: dict[str, tuple[Callable[[subprocess.Popen[bytes], Segment], None], timedelta, str]] = {
    "died": (lambda other, _: other.send_signal(signal.SIGKILL), LONG, "has ended"),  # a zombie is dead, too
    "left": (lambda _, segment: segment.leave(), LONG, "has exited"),
    "frozen": (lambda other, _: other.send_signal(signal.SIGSTOP), SHORT, r"strategy\.timeout_s"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_rank_lost(other: subprocess.Popen[bytes], loss: str) -> None:
    lose, timeout, message = LOSSES[loss]
    neighbours, segment = pair(other.pid, timeout)
    lose(other, segment)
    with pytest.raises(RankLost, match=f"rank 1.*{message}") as caught:
        neighbours.add_up(torch.ones(1))
    assert is_lost_rank(caught.value)


def test_a_row_that_is_posted_just_after_a_wait_has_ended_still_counts(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbours, segment = pair(other.pid, LONG)
    theirs = Neighbours(segment, (os.getpid(), os.getpid()), SHORT, has_cores=False)
    theirs._tensors.rows(1, torch.float32).by_rank[1].fill_(3.0)

    def ended_in_vain(address: int, most_s: float) -> bool:
        if other.poll() is None:
            theirs._tensors.post()
            other.kill()
            other.wait()
        return False

    monkeypatch.setattr(neighbours._tensors._semaphores, "wait", ended_in_vain)
    total = torch.ones(1)
    neighbours.add_up(total)
    assert total.item() == 4.0


def what_a_backward_pass_raises() -> list[bool]:
    """On rank 0, while rank 1 has left: once out of the hook of DDP, once out of a batch norm."""
    model = DistributedDataParallel(nn.Linear(3, 3))
    gradients.choose(model)
    norm = ExactBatchNorm().apply(nn.BatchNorm1d(3))
    outputs = [model(torch.ones(2, 3)), norm(torch.randn(4, 3, requires_grad=True))]
    neighbours = collectives._neighbours
    assert neighbours is not None
    if dist.get_rank() == 1:
        neighbours.leave()
        return []
    lost = []
    for output in outputs:
        with pytest.raises(RankLost) as caught:
            output.sum().backward()
        lost.append(is_lost_rank(caught.value))
    return lost


@pytest.mark.processes
def test_a_lost_rank_is_recognized_in_a_backward_pass(ranks: Ranks) -> None:
    assert ranks.run(2, what_a_backward_pass_raises) == [[True, True], []]


KEPT = """
import os, sys, time
from lockstep.distributed import collectives, shared_memory
from torch import distributed as dist
from datetime import timedelta
rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=2)
collectives.connect(timedelta(seconds=600), 1)
assert collectives.shares_memory()
open(f"{path}/{rank}", "w").close()
time.sleep(600)
"""


def traces() -> tuple[set[str], set[str]]:
    """Files in /dev/shm without those of other tests (joblib, queues), and processes that have our memory mapped."""
    holders = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            holders |= {maps.parent.name} if "/memfd:lockstep" in maps.read_text() else set()
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("sem.loky-", "sem.mp-", "torch_"))}, holders


@pytest.mark.processes
def test_ranks_that_are_killed_leave_nothing_in_memory(tmp_path: Path) -> None:
    before, _ = traces()
    workers = [Command([sys.executable, "-c", KEPT, str(rank), str(tmp_path)], ROOT) for rank in range(2)]
    pids = {str(worker.pid) for worker in workers}
    try:
        wait_until(lambda: all((tmp_path / str(rank)).exists() for rank in range(2)), "both ranks share memory")
        assert traces()[1] >= pids
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    names, holders = traces()
    assert (names - before, holders & pids) == (set(), set())

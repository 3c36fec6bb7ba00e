"""Collectives through shared memory: every rank has the same bits, and none waits for ever."""

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lockstep.distributed import collectives, gradients
from lockstep.distributed.batch_norm import ExactBatchNorm
from lockstep.distributed.collectives import add_up, all_gather, is_lost_rank
from lockstep.distributed.shared_memory import Neighbors, RankLost, Segment
from lockstep.system.hardware import num_cores
from tests.support.harness import PATIENCE_S
from tests.support.processes import TIMEOUT, Ranks

# elements: one, a row of a batch norm, an odd row, several rows
LENGTHS = (1, 129, 100_003, 600_001)
SHORT, LONG = timedelta(seconds=0.5), timedelta(seconds=10 * PATIENCE_S)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's")


def values_of(rank: int, length: int, dtype: torch.dtype) -> Tensor:
    """Numbers of very different size: added in another order they give other bits."""
    source = torch.Generator().manual_seed(rank)
    size = 10.0 ** torch.randint(-3, 4, (length,), generator=source, dtype=torch.float64)
    return (torch.randn(length, generator=source, dtype=torch.float64) * size).to(dtype)


def in_rank_order(world_size: int, length: int, dtype: torch.dtype) -> Tensor:
    return functools.reduce(
        torch.add, (values_of(rank, length, dtype) for rank in range(world_size))
    )


def sums(lengths: tuple[int, ...], dtype: torch.dtype) -> tuple[bool, list[Tensor]]:
    found = [values_of(dist.get_rank(), length, dtype) for length in lengths]
    for values in found:
        add_up(values)
    return collectives.shares_memory(), found


@pytest.mark.processes
@pytest.mark.parametrize(
    ("world_size", "dtype"), [(3, torch.float32), (2, torch.float64), (3, torch.bfloat16)]
)
def test_sums_in_rank_order(ranks: Ranks, world_size: int, dtype: torch.dtype) -> None:
    expected = [in_rank_order(world_size, length, dtype) for length in LENGTHS]
    for shares_memory, found in ranks.run(world_size, sums, LENGTHS, dtype):
        assert shares_memory
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def many_gathers() -> bool:
    """Gathers and sums in turn, each rank in its own time, compared number by number."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    others, is_equal = torch.arange(world_size).view(-1, 1), True
    source = torch.Generator().manual_seed(rank)
    for step in range(100):
        if torch.rand((), generator=source) < 0.2:
            time.sleep(float(torch.rand((), generator=source)) * 0.01)
        length = 1 + step * 37 % 6000
        rows = all_gather(torch.full((length,), float(step * 10 + rank)))
        is_equal &= bool((rows == step * 10 + others).all())
        total = torch.full((length,), rank + step, dtype=torch.int64)
        add_up(total)
        is_equal &= bool((total == others.sum() + step * world_size).all())
    return is_equal


@pytest.mark.processes
def test_rows_not_overwritten(ranks: Ranks) -> None:
    assert ranks.run(3, many_gathers) == [True] * 3


# -- without shared memory -------------------------------------------------------------------------


def refused(*args: object) -> None:
    raise OSError(28, "No space left on device")


def refused_memory(refusing_rank: int) -> tuple[bool, str, float]:
    """What is printed, and a sum, when one rank gets no memory."""
    collectives._neighbors = None
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
def test_without_memory(ranks: Ranks, refusing_rank: int) -> None:
    (has_memory, line, total), other = ranks.run(2, refused_memory, refusing_rank)
    assert "No space left on device" in line
    assert (has_memory, total) == (False, 2.0)
    assert other == (False, "", 2.0)


def test_memory_allocated_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a full memory would end a process by SIGBUS in the middle of a run."""
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", refused)
    with pytest.raises(OSError, match="No space"):
        Segment.make(2)
    assert len(os.listdir("/proc/self/fd")) == before


# -- a rank that does not come ---------------------------------------------------------------------


def pair(pid: int, timeout: timedelta) -> tuple[Neighbors, Segment]:
    """Rank 0 of two, whose other one is the process `pid`."""
    segment, descriptor = Segment.make(2)
    other = Segment.open(os.getpid(), descriptor, 1, 2)
    os.close(descriptor)
    return Neighbors(segment, (os.getpid(), pid), timeout, has_cores=False), other


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", str(PATIENCE_S)]) as process:
        yield process
        process.kill()


LOSSES: dict[str, tuple[Callable[[subprocess.Popen[bytes], Segment], None], timedelta, str]] = {
    # a zombie is dead, too
    "died": (lambda other, _: other.send_signal(signal.SIGKILL), LONG, "has ended"),
    "left": (lambda _, segment: segment.leave(), LONG, "has exited"),
    "frozen": (lambda other, _: other.send_signal(signal.SIGSTOP), SHORT, r"strategy\.timeout_s"),
}


@pytest.mark.parametrize(("lose", "timeout", "message"), LOSSES.values(), ids=LOSSES)
def test_rank_lost(
    other: subprocess.Popen[bytes], lose: Callable[..., None], timeout: timedelta, message: str
) -> None:
    neighbors, segment = pair(other.pid, timeout)
    lose(other, segment)
    with pytest.raises(RankLost, match=f"rank 1.*{message}") as caught:
        neighbors.add_up(torch.ones(1))
    assert is_lost_rank(caught.value)


def test_row_posted_after_wait(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbors, segment = pair(other.pid, LONG)
    theirs = Neighbors(segment, (os.getpid(), os.getpid()), SHORT, has_cores=False)
    theirs._tensors.rows(1, torch.float32).by_rank[1].fill_(3.0)

    def ended_in_vain(address: int, max_s: float) -> bool:
        if other.poll() is None:
            theirs._tensors.post()
            other.kill()
            other.wait()
        return False

    monkeypatch.setattr(neighbors._tensors._semaphores, "wait", ended_in_vain)
    total = torch.ones(1)
    neighbors.add_up(total)
    assert total.item() == 4.0


def what_a_backward_pass_raises() -> list[bool]:
    """On rank 0, while rank 1 has left: once out of the hook of DDP, once out of a batch norm."""
    model = DistributedDataParallel(nn.Linear(3, 3))
    gradients.choose(model)
    norm = ExactBatchNorm().apply(nn.BatchNorm1d(3))
    outputs = [model(torch.ones(2, 3)), norm(torch.randn(4, 3, requires_grad=True))]
    neighbors = collectives._neighbors
    assert neighbors is not None
    if dist.get_rank() == 1:
        neighbors.leave()
        return []
    lost = []
    for output in outputs:
        with pytest.raises(RankLost) as caught:
            output.sum().backward()
        lost.append(is_lost_rank(caught.value))
    return lost


@pytest.mark.processes
def test_rank_lost_in_backward(ranks: Ranks) -> None:
    assert ranks.run(2, what_a_backward_pass_raises) == [[True, True], []]

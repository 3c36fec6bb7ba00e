import time
from datetime import timedelta

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

from lockstep.distributed.collectives import FlagChannel, gather_objects, sum_over_ranks
from tests.support.processes import TIMEOUT, Ranks

# the flag each of three ranks raises at each step
SCRIPT = [(0, 0, 0), (0, 7, 0), (0, 0, 0), (3, 1, 2), (0, 0, 9), (1000, 0, 0), (0, 0, 0), (6, 0, 0)]


def received(is_slow: bool) -> list[int]:
    """What this rank receives at each step, and after the last one."""
    channel, rank = FlagChannel(TIMEOUT), dist.get_rank()
    flags = []
    for step in SCRIPT:
        if is_slow:
            time.sleep(0.02 * rank)
        flags.append(channel.receive())
        channel.send(step[rank])
    return [*flags, channel.receive(), channel.receive()]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("world_size", "has_memory", "is_slow"), [(2, True, False), (3, True, True), (2, False, True)]
)
def test_flag_one_step_late(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, world_size: int, has_memory: bool, is_slow: bool
) -> None:
    monkeypatch.setattr(ranks, "has_memory", has_memory)  # else the flags go by gloo
    largest = [max(step[:world_size]) for step in SCRIPT]
    assert ranks.run(world_size, received, is_slow) == [[0, *largest, 0]] * world_size


def agreed(is_pending: bool) -> tuple[int, int, int]:
    rank = dist.get_rank()
    channel = FlagChannel(timedelta(seconds=30))
    if is_pending:
        channel.send(5 * rank)
    return channel.agree(4 * (rank == 0)), channel.receive(), channel.agree(rank)


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [2, 3])
def test_agreement_includes_pending_flag(ranks: Ranks, world_size: int) -> None:
    last = world_size - 1
    assert ranks.run(world_size, agreed, False) == [(4, 0, last)] * world_size
    assert ranks.run(world_size, agreed, True) == [(5 * last, 0, last)] * world_size


def counts_of(rank: int) -> Tensor:
    return (
        torch.rand(500, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
        * 10.0**rank
    )


def summed() -> tuple[Tensor, bool]:
    counts = counts_of(dist.get_rank())
    before = counts.clone()
    return sum_over_ranks(counts), torch.equal(counts, before)


@pytest.mark.processes
def test_sum_over_ranks(ranks: Ranks) -> None:
    results = ranks.run(3, summed)
    expected = torch.stack([counts_of(rank) for rank in range(3)]).sum(0)
    for total, is_untouched in results:
        assert torch.equal(total, results[0][0])
        torch.testing.assert_close(total, expected, rtol=1e-15, atol=0)
        assert is_untouched


def gathered() -> list[dict[str, object]]:
    return gather_objects({"rank": dist.get_rank(), "text": "x" * dist.get_rank()})


@pytest.mark.processes
def test_gather_objects(ranks: Ranks) -> None:
    assert ranks.run(3, gathered) == [[{"rank": rank, "text": "x" * rank} for rank in range(3)]] * 3

import time
from datetime import timedelta

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

from lockstep.distributed import collectives
from lockstep.distributed.collectives import FlagChannel, gather_objects, is_distributed, sum_over_ranks
from lockstep.models.layout import CompiledNetwork
from lockstep.models.passes import Layout
from tests.support.processes import TIMEOUT, Ranks

# the flag each of three ranks raises at each step
SCRIPT = [(0, 0, 0), (0, 7, 0), (0, 0, 0), (3, 1, 2), (0, 0, 9), (1000, 0, 0), (0, 0, 0), (6, 0, 0)]


def received(script: list[tuple[int, ...]], rank: int, *, is_slow: bool = False) -> list[int]:
    """What a rank receives at each step, and after the last one."""
    channel = FlagChannel(TIMEOUT)
    flags = []
    for step in script:
        if is_slow:
            time.sleep(0.02 * rank)
        flags.append(channel.receive())
        channel.send(step[rank])
    return [*flags, channel.receive(), channel.receive()]


def received_by_rank(is_slow: bool) -> list[int]:
    return received(SCRIPT, dist.get_rank(), is_slow=is_slow)


@pytest.mark.processes
@pytest.mark.parametrize(("world_size", "has_memory", "is_slow"), [(2, True, False), (3, True, True), (2, False, True)])
def test_a_flag_of_any_rank_reaches_all_ranks_at_the_same_step_one_late(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, world_size: int, has_memory: bool, is_slow: bool
) -> None:
    monkeypatch.setattr(ranks, "has_memory", has_memory)  # else the flags go by gloo
    largest = [max(step[:world_size]) for step in SCRIPT]
    assert ranks.run(world_size, received_by_rank, is_slow) == [[0, *largest, 0]] * world_size


def agreed(is_pending: bool) -> tuple[int, int, int]:
    rank = dist.get_rank() if is_distributed() else 0
    channel = FlagChannel(timedelta(seconds=30))
    if is_pending:
        channel.send(5 * rank)
    return channel.agree(4 * (rank == 0)), channel.receive(), channel.agree(rank)


@pytest.mark.processes
@pytest.mark.parametrize("world_size", [2, 3])
def test_agreement_is_immediate_and_includes_a_pending_flag(ranks: Ranks, world_size: int) -> None:
    last = world_size - 1
    assert ranks.run(world_size, agreed, False) == [(4, 0, last)] * world_size
    assert ranks.run(world_size, agreed, True) == [(5 * last, 0, last)] * world_size


def counts_of(rank: int) -> Tensor:
    return torch.rand(500, generator=torch.Generator().manual_seed(rank), dtype=torch.float64) * 10.0**rank


def summed() -> tuple[Tensor, bool]:
    counts = counts_of(dist.get_rank())
    before = counts.clone()
    return sum_over_ranks(counts), torch.equal(counts, before)


@pytest.mark.processes
def test_the_sum_over_ranks_has_the_same_bits_on_each_and_leaves_the_counts_alone(ranks: Ranks) -> None:
    results = ranks.run(3, summed)
    expected = torch.stack([counts_of(rank) for rank in range(3)]).sum(0)
    for total, is_untouched in results:
        assert torch.equal(total, results[0][0])
        torch.testing.assert_close(total, expected, rtol=1e-15, atol=0)
        assert is_untouched


def gathered() -> list[dict[str, object]]:
    return gather_objects({"rank": dist.get_rank(), "text": "x" * dist.get_rank()})


@pytest.mark.processes
def test_objects_of_all_ranks_arrive_on_each_in_rank_order(ranks: Ranks) -> None:
    assert ranks.run(3, gathered) == [[{"rank": rank, "text": "x" * rank} for rank in range(3)]] * 3


def test_one_process() -> None:
    assert received(SCRIPT, 0) == [0, *(step[0] for step in SCRIPT), 0]
    assert agreed(False) == agreed(True) == (4, 0, 0)
    counts = counts_of(0)
    total = sum_over_ranks(counts)
    assert torch.equal(total, counts)
    assert total.data_ptr() != counts.data_ptr()
    assert gather_objects("alone") == ["alone"]


def compiled_inputs(rank_row: Tensor) -> list[tuple[torch.dtype, int]]:
    """Type and size of every input of the graphs into which torch.compile turns an exchange, and its sum last."""
    CompiledNetwork(nn.Identity(), [], Layout(torch.contiguous_format, ""))
    found: list[tuple[torch.dtype, int]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        found.extend((each.dtype, each.numel()) for each in inputs if isinstance(each, Tensor))
        return graph

    gathered = torch.compile(lambda row: collectives.all_gather(row * 2).sum(0) + 1, backend=backend)
    assert gathered(rank_row).tolist() == [5.0] * len(rank_row)
    return found


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")  # of the compiler's own imports
def test_a_compiled_exchange_touches_only_its_own_row(ranks: Ranks) -> None:
    for found in ranks.run(2, compiled_inputs, torch.ones(3)):
        assert found, "the arithmetic around the exchange is compiled"
        assert all(dtype == torch.float32 and size <= 2 * 3 for dtype, size in found), "not the segment"

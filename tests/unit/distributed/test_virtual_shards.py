"""Virtual shards in the threads of one process; several processes are in tests/integration/test_exactness.py."""

import pytest
import torch

from lockstep.distributed import collectives
from lockstep.distributed.batch import Batch, Mix
from lockstep.distributed.partition import Shard
from lockstep.distributed.virtual_shards import VirtualShards


def batch(size: int, *, more: int = 0, lo: int = 10) -> Batch:
    rows = torch.arange(size + more)
    shard = Shard(epoch=0, step=0, micro_step=0, size=size, lo=lo, hi=lo + size, group_size=99)
    return Batch(rows.float(), rows, rows, shard)


@pytest.mark.parametrize("num_threads", [1, 4])
def test_collectives_have_a_row_of_every_virtual_shard(num_threads: int) -> None:
    shards = VirtualShards(4, [1], num_threads)

    def work(place: int) -> tuple[int, list[list[float]], float, list[str]]:
        assert collectives.is_distributed()
        rows = collectives.all_gather(torch.tensor([place, 1.0]))
        total = collectives.sum_over_ranks(torch.tensor(float(place)))
        return collectives.world_size(), rows.tolist(), total.item(), collectives.gather_objects(f"part {place}")

    expected = (4, [[0, 1], [1, 1], [2, 1], [3, 1]], 6.0, ["part 0", "part 1", "part 2", "part 3"])
    assert shards.run(work) == [expected] * 4
    assert collectives.world_size() == 1
    assert not collectives.is_distributed()


def test_no_more_parts_compute_at_once_than_there_are_threads() -> None:
    running, counts = set[int](), list[int]()

    def work(place: int) -> None:
        for _ in range(20):
            running.add(place)
            counts.append(len(running))
            torch.ones(1000).sum()
            running.discard(place)
            collectives.all_gather(torch.ones(1))

    VirtualShards(6, [1], 2).run(work)
    assert max(counts) <= 2


def test_the_error_of_a_part_ends_all_and_is_raised() -> None:
    def work(place: int) -> None:
        if place == 1:
            raise ValueError("of part 1")
        collectives.all_gather(torch.ones(1))

    with pytest.raises(ValueError, match="of part 1"):
        VirtualShards(3, [1], 2).run(work)


def test_parts_compute_in_the_modes_of_their_caller() -> None:
    shards = VirtualShards(2, [1], 1)
    with torch.no_grad():
        assert shards.run(lambda place: torch.is_grad_enabled()) == [False, False]
    with torch.inference_mode():
        assert shards.run(lambda place: torch.is_inference_mode_enabled()) == [True, True]


def test_a_backward_pass_may_wait_for_other_parts() -> None:
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
            return collectives.sum_over_ranks(gradients[0])

    def work(place: int) -> float:
        x = torch.ones(1, requires_grad=True)
        (Sum.apply(x) * (place + 1)).sum().backward()
        assert x.grad is not None
        return x.grad.item()

    assert VirtualShards(3, [1], 1).run(work) == [6.0, 6.0, 6.0]


def test_a_batch_is_cut_by_its_size_alone() -> None:
    shards = VirtualShards(4, [1], 1)
    parts = shards.cut(batch(6))
    assert [part.indices.tolist() for part in parts] == [[0, 1], [2], [3, 4], [5]]
    assert [(part.shard.lo, part.shard.hi) for part in parts] == [(10, 12), (12, 13), (13, 15), (15, 16)]
    assert [len(part.indices) for part in shards.cut(batch(2))] == [1, 0, 1, 0]
    odd = batch(6)
    odd = odd._replace(shard=odd.shard._replace(size=40))  # of other loads
    assert shards.cut(odd) == [odd]


def test_parts_have_the_partner_of_their_last_image_and_are_joined_again() -> None:
    shards = VirtualShards(3, [1], 1)
    assert [part.indices.tolist() for part in shards.cut(batch(2, more=1))] == [[0, 1], [1, 2], []]

    def mix(part: Batch) -> Batch:
        mix = Mix(part.targets[1:], part.inputs[1:])
        return Batch(part.inputs[:-1], part.targets[:-1], part.indices[:-1], part.shard, mix)

    mixed = shards.map(mix, batch(5, more=1))
    assert mixed.indices.tolist() == [0, 1, 2, 3, 4]
    assert mixed.mix is not None
    assert mixed.mix.targets.tolist() == [1, 2, 3, 4, 5]


def test_gradients_are_means_over_all_virtual_shards_and_missing_ones_zeros() -> None:
    used = torch.nn.Parameter(torch.zeros(2, 3, 2, 2).contiguous(memory_format=torch.channels_last))
    wide, unused = torch.nn.Parameter(torch.zeros(2).double()), torch.nn.Parameter(torch.zeros(1))
    gradients = [
        [torch.full_like(used, place), torch.ones(2).double() if place == 2 else None, None] for place in range(4)
    ]
    VirtualShards(4, [1], 1).average([used, wide, unused], gradients)
    assert used.grad is not None
    assert (used.grad.unique().tolist(), used.grad.stride()) == ([1.5], used.stride())
    assert wide.grad is not None
    assert wide.grad.tolist() == [0.25, 0.25]
    assert unused.grad is None

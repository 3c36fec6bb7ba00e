"""Virtual shards in the threads of one process; test_exactness.py has several processes."""

import pytest
import torch

from lockstep.distributed import collectives
from lockstep.distributed.batch import Batch
from lockstep.distributed.partition import Shard
from lockstep.distributed.virtual_shards import VirtualShards


def batch(size: int, *, more: int = 0, lo: int = 10) -> Batch:
    rows = torch.arange(size + more)
    shard = Shard(epoch=0, step=0, micro_step=0, size=size, lo=lo, hi=lo + size, group_size=99)
    return Batch(rows.float(), rows, rows, shard)


def test_error_ends_all() -> None:
    def work(place: int) -> None:
        if place == 1:
            raise ValueError("of part 1")
        collectives.all_gather(torch.ones(1))

    with pytest.raises(ValueError, match="of part 1"):
        VirtualShards(3, [1], 2).run(work)


def test_split_batch() -> None:
    shards = VirtualShards(4, [1], 1)
    parts = shards.split(batch(6))
    assert [part.indices.tolist() for part in parts] == [[0, 1], [2], [3, 4], [5]]
    assert [(part.shard.lo, part.shard.hi) for part in parts] == [
        (10, 12),
        (12, 13),
        (13, 15),
        (15, 16),
    ]
    assert [len(part.indices) for part in shards.split(batch(2))] == [1, 0, 1, 0]
    odd = batch(6)
    odd = odd._replace(shard=odd.shard._replace(size=40))  # of other worker_weights
    assert shards.split(odd) == [odd]


def test_average_gradients() -> None:
    used = torch.nn.Parameter(torch.zeros(2, 3, 2, 2).contiguous(memory_format=torch.channels_last))
    wide, unused = torch.nn.Parameter(torch.zeros(2).double()), torch.nn.Parameter(torch.zeros(1))
    gradients = [
        [torch.full_like(used, place), torch.ones(2).double() if place == 2 else None, None]
        for place in range(4)
    ]
    VirtualShards(4, [1], 1).average([used, wide, unused], gradients)
    assert used.grad is not None
    assert (used.grad.unique().tolist(), used.grad.stride()) == ([1.5], used.stride())
    assert wide.grad is not None
    assert wide.grad.tolist() == [0.25, 0.25]
    assert unused.grad is None

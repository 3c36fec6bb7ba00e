"""A rank that replays its batch norm: `python -m tests.support.graphed_ranks RANK WORLD_SIZE STORE`."""

import sys
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from lockstep.distributed.batch_norm import ExactBatchNorm

SIZES = (3, 2)  # of the ranks' shards


def main(rank: int, world_size: int, store: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world_size)
    net, eager = (ExactBatchNorm().apply(nn.Sequential(nn.BatchNorm1d(4), nn.ReLU())).cuda() for _ in range(2))
    x = torch.zeros(SIZES[rank], 4, device="cuda", requires_grad=True)
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    inputs: Any = (x, *net.parameters())
    if rank == 1:
        dist.barrier()  # a capture exchanges nothing: rank 0 does not wait for this one
    with torch.cuda.stream(torch.cuda.Stream()):
        pool = torch.cuda.graph_pool_handle()
        forward.capture_begin(pool=pool, capture_error_mode="thread_local")
        y = net(x)
        forward.capture_end()
        dy = torch.empty_like(y)
        backward.capture_begin(pool=pool, capture_error_mode="thread_local")
        gradients = torch.autograd.grad(y, inputs, dy)
        backward.capture_end()
    if rank == 0:
        dist.barrier()
    for step in range(3):
        torch.manual_seed(10 * step + rank)
        with torch.no_grad():
            x.copy_(torch.randn(SIZES[rank], 4))
        dy.copy_(torch.randn(SIZES[rank], 4))
        forward.replay()
        backward.replay()
        expected = eager(x)
        assert torch.equal(y, expected)
        others = torch.autograd.grad(expected, (x, *eager.parameters()), dy)
        assert all(torch.equal(one, other) for one, other in zip(gradients, others, strict=True))
        assert all(torch.equal(value, eager.state_dict()[name]) for name, value in net.state_dict().items())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

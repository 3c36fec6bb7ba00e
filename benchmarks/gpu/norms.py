"""Two processes with synchronized batch norm: `torchrun -m benchmarks.gpu.norms gloo|nccl FILE`.

By gloo both processes share the first GPU, by NCCL each has its own. In float64 torch's kernels compute, in float32
Triton's.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

from lockstep.distributed.batch_norm import SyncBatchNorm

SHARES = ((5, 3), (1, 7), (8, 0), (0, 8))


def compare(rank: int, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Largest difference to nn.BatchNorm2d on the whole batch, on the CPU, float64: of any value, for every split."""
    as_here = partial(torch.Tensor.to, device=device, dtype=dtype, memory_format=torch.channels_last)
    largest = {}
    for shards in SHARES:
        draws = torch.Generator().manual_seed(0)
        images, gradient = torch.randn(2, 8, 4, 6, 5, dtype=torch.float64, generator=draws)
        images = 2 * images + 3
        whole, ours = nn.BatchNorm2d(4).double(), SyncBatchNorm(4).double()
        nn.init.uniform_(whole.weight, 0.5, 2.0, generator=draws)
        ours.load_state_dict(whole.state_dict())
        ours.to(device, dtype)
        shard = slice(sum(shards[:rank]), sum(shards[: rank + 1]))
        values = []
        for layer, x, dy in ((whole, images, gradient), (ours, as_here(images[shard]), as_here(gradient[shard]))):
            x = x.requires_grad_()
            y = layer(x)
            y.backward(dy)
            values.append([y, x.grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var])
        (y, dx, *expected), (own_y, own_dx, *own) = values
        for gradient_sum in own[:2]:
            dist.all_reduce(gradient_sum)
        pairs = [(own_y, y[shard]), (own_dx, dx[shard]), *zip(own, expected, strict=True)]
        differences = [(a.detach().cpu() - b.detach()).abs().max() for a, b in pairs if a.numel()]
        worst = torch.stack(differences).max().to(device)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        largest[f"{str(dtype)[6:]}, shares " + " + ".join(map(str, shards))] = worst.item()
    return largest


def main() -> None:
    """Compare the layers as one of two ranks; rank 0 writes the results."""
    backend, path = sys.argv[1:]
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank if backend == "nccl" else 0)
    torch.cuda.set_device(device)
    dist.init_process_group(backend)
    values = compare(rank, device, torch.float64) | compare(rank, device, torch.float32)
    if rank == 0:
        Path(path).write_text(json.dumps(values))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Two processes with synchronized batch norm: `torchrun -m benchmarks.gpu.norms compare|time gloo|nccl FILE`.

By gloo both processes share the first GPU, by NCCL each has its own.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

from lockstep.distributed.batch_norm import SyncBatchNorm

SHARES = ((5, 3), (1, 7), (8, 0), (0, 8))
WARM_UP, NUM_ROUNDS = 5, 20


def compare(rank: int, device: torch.device) -> dict[str, float]:
    """Largest difference to nn.BatchNorm2d on the whole batch, on the CPU, float64: of any value, for every split."""
    largest = {}
    for shards in SHARES:
        draws = torch.Generator().manual_seed(0)
        images, gradient = torch.randn(2, 8, 4, 6, 5, dtype=torch.float64, generator=draws)
        images = 2 * images + 3
        whole, ours = nn.BatchNorm2d(4).double(), SyncBatchNorm(4).double()
        nn.init.uniform_(whole.weight, 0.5, 2.0, generator=draws)
        ours.load_state_dict(whole.state_dict())
        ours.to(device)
        shard = slice(sum(shards[:rank]), sum(shards[: rank + 1]))
        values = []
        for layer, x, dy in ((whole, images, gradient), (ours, images[shard].to(device), gradient[shard].to(device))):
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
        largest[" + ".join(map(str, shards))] = worst.item()
    return largest


def clock(rank: int, device: torch.device) -> dict[str, list[float] | str]:
    """Milliseconds of forward and backward of 256x64x32x32 in bfloat16, channels last, on every process; or why not."""
    images = torch.randn(256, 64, 32, 32, device=device, dtype=torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    gradient = torch.randn_like(images)
    results: dict[str, list[float] | str] = {}
    for name, layer in (("local", nn.BatchNorm2d(64)), ("ours", SyncBatchNorm(64)), ("torch's", nn.SyncBatchNorm(64))):
        layer.to(device)
        times = []
        try:
            for _ in range(WARM_UP + NUM_ROUNDS):
                torch.cuda.synchronize()
                dist.barrier()
                started = time.perf_counter()
                torch.autograd.grad(layer(images), images, gradient)
                torch.cuda.synchronize()
                times.append(1e3 * (time.perf_counter() - started))
            results[name] = times[WARM_UP:]
        except RuntimeError as error:  # on both ranks alike; the other layers follow
            results[name] = str(error).splitlines()[0]
    return results


def main() -> None:
    """Compare and clock the layers as one of two ranks; rank 0 writes the results."""
    what, backend, path = sys.argv[1:]
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank if backend == "nccl" else 0)
    torch.cuda.set_device(device)
    dist.init_process_group(backend)
    values = {"compare": compare, "time": clock}[what](rank, device)
    if rank == 0:
        Path(path).write_text(json.dumps(values))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

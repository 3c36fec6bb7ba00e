"""Gradient averaging for DDP through shared memory, or in bfloat16."""

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from lockstep.distributed import collectives


def choose(model: DistributedDataParallel, *, is_bfloat16: bool) -> None:
    """Register the communication hook of `model`; Lightning ignores its `ddp_comm_hook` on a CPU."""
    if next(model.parameters()).device.type == "cpu" and collectives.shares_memory():
        model.register_comm_hook(torch.bfloat16 if is_bfloat16 else None, _averaged)
    elif is_bfloat16:
        model.register_comm_hook(None, bf16_compress_hook)


def _averaged(
    dtype: torch.dtype | None,
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
) -> torch.futures.Future[Tensor]:
    """Average a bucket of gradients over the ranks, sent in `dtype` if given.

    It blocks instead of overlapping with the backward pass: the processes share the cores, so none is idle.
    """
    gradients: Tensor = bucket.buffer()
    sent = gradients.to(dtype or gradients.dtype).div_(dist.get_world_size())
    collectives.add_up(sent)
    if sent is not gradients:
        gradients.copy_(sent)
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(gradients)
    return future

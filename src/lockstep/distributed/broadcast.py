"""Broadcast tensors from rank 0 to all ranks."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch import distributed as dist


def broadcast(values: Iterable[Tensor]) -> None:
    """Replace `values` by those of rank 0. Every rank must call it."""
    with torch.no_grad():
        for value in values:
            buffer = value.contiguous()
            dist.broadcast(buffer, 0)
            value.copy_(buffer)

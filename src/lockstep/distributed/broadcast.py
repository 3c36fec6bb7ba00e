"""Broadcast tensors from rank 0 to all ranks."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch import distributed as dist


def broadcast(values: Iterable[Tensor]) -> None:
    """Replace `values` by those of rank 0. Every rank must call it."""
    with torch.no_grad():
        for value in values:
            whole = value.contiguous()
            dist.broadcast(whole, 0)
            value.copy_(whole)

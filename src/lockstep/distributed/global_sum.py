"""A sum over all samples of the global batch, for custom losses."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lockstep.distributed.batch import Batch
from lockstep.distributed.collectives import is_distributed, sum_over_ranks, world_size


def sum_over_global(values: Tensor, batch: Batch) -> Tensor:
    """Sum `values` (B, ...), one row per sample of this shard, over the global batch.

    The result (...) is the same on every worker, and every worker must call this. It is in float32
    or wider, because narrower sums would round differently for other shards.

    A loss of such sums, and of numbers that are equal on all workers, has the gradient that one
    worker would compute. DDP averages over workers, so the gradient of a shard is multiplied by
    their number. Divide by `batch.shard.size`, the number of samples of the global batch.

    Raises ValueError for any other number of rows.
    """
    if len(values) != len(batch.indices):
        raise ValueError(
            f"sum_over_global needs one row for each of {len(batch.indices)} samples, "
            f"got {len(values)} rows"
        )
    total = values.sum(0, dtype=torch.promote_types(values.dtype, torch.float32))
    if not is_distributed():
        return total
    global_total: Tensor = _Summed.apply(total)  # pyright: ignore[reportAssignmentType]
    return global_total


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total: Tensor) -> Tensor:
        return sum_over_ranks(total)

    @staticmethod
    @override
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        return grad_outputs[0] * world_size()

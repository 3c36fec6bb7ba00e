"""A sum over the global batch: its value, and its gradient through DDP's mean over the ranks."""

import pytest
import torch
from torch import Tensor, nn

from lockstep import Batch, sum_over_global
from lockstep.distributed.partition import Shard, interval
from lockstep.distributed.virtual_shards import VirtualShards

NUM_SAMPLES = 7


def batch_of(lo: int, hi: int) -> Batch:
    shard = Shard(
        epoch=0, step=0, micro_step=0, size=NUM_SAMPLES, lo=lo, hi=hi, group_size=NUM_SAMPLES
    )
    rows = torch.arange(lo, hi)
    return Batch(rows, rows, rows, shard)


def loss_of(net: nn.Module, lo: int, hi: int) -> tuple[Tensor, list[Tensor]]:
    """The value and the gradients of a product of two sums.

    One of them is squared: the product is not a sum over samples.
    """
    torch.manual_seed(0)
    inputs, batch = torch.randn(NUM_SAMPLES, 3, dtype=torch.float64)[lo:hi], batch_of(lo, hi)
    outputs = net(inputs)
    loss = sum_over_global(outputs, batch).square().sum() * sum_over_global(
        outputs.cos().sum(1), batch
    )
    loss.backward()
    return loss.detach(), [
        parameter.grad for parameter in net.parameters() if parameter.grad is not None
    ]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


@pytest.mark.parametrize("worker_weights", [(3, 1), (2, 0, 1)], ids=str)
def test_any_shards(worker_weights: tuple[int, ...]) -> None:
    loss, gradients = loss_of(network(), 0, NUM_SAMPLES)
    with VirtualShards(len(worker_weights), [1], 1) as ranks:
        found = ranks.run(
            lambda rank: loss_of(network(), *interval(NUM_SAMPLES, worker_weights, rank))
        )
    for its_loss, _ in found:
        torch.testing.assert_close(its_loss, loss, rtol=1e-13, atol=0)
    for parts, expected in zip(
        zip(*(its for _, its in found), strict=True), gradients, strict=True
    ):
        mean = torch.stack(parts).mean(0)  # as DDP does
        torch.testing.assert_close(mean, expected, rtol=1e-12, atol=1e-12)


def test_bfloat16_summed_in_float32() -> None:
    """Of 256 + 1 bfloat16 has no more than 256."""
    total = sum_over_global(
        torch.tensor([256.0, 1, 1, 1, 1, 1, 1]).bfloat16(), batch_of(0, NUM_SAMPLES)
    )
    assert (total.item(), total.dtype) == (262.0, torch.float32)


def test_wrong_num_rows_refused() -> None:
    with pytest.raises(ValueError, match="needs one row for each of 3 samples, got 2"):
        sum_over_global(torch.zeros(2), batch_of(0, 3))

"""A sum over the global batch: its value, and the gradient that DDP's mean over the ranks makes of it."""

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

from lockstep import Batch, sum_over_global
from lockstep.distributed.partition import Shard, interval
from tests.support.processes import Ranks

NUM_SAMPLES = 7
LOADS = [(1, 1), (3, 1), (0, 1), (2, 0, 1), (1, 1, 1)]


def batch_of(lo: int, hi: int) -> Batch:
    shard = Shard(epoch=0, step=0, micro_step=0, size=NUM_SAMPLES, lo=lo, hi=hi, group_size=NUM_SAMPLES)
    rows = torch.arange(lo, hi)
    return Batch(rows, rows, rows, shard)


def loss_of(net: nn.Module, lo: int, hi: int) -> tuple[Tensor, list[Tensor]]:
    """The value and the gradients of a product of two sums, one of them squared: not a sum over samples."""
    torch.manual_seed(0)
    inputs, batch = torch.randn(NUM_SAMPLES, 3, dtype=torch.float64)[lo:hi], batch_of(lo, hi)
    outputs = net(inputs)
    loss = sum_over_global(outputs, batch).square().sum() * sum_over_global(outputs.cos().sum(1), batch)
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in net.parameters() if parameter.grad is not None]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def of_a_shard(loads: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
    loss, gradients = loss_of(network(), *interval(NUM_SAMPLES, loads, dist.get_rank()))
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= len(loads)  # as DDP does
    return loss, gradients


@pytest.mark.processes
@pytest.mark.parametrize("loads", LOADS, ids=str)
def test_any_split_has_the_value_and_the_gradient_of_one_worker(ranks: Ranks, loads: tuple[int, ...]) -> None:
    loss, gradients = loss_of(network(), 0, NUM_SAMPLES)
    for found, found_gradients in ranks.run(len(loads), of_a_shard, loads):
        torch.testing.assert_close(found, loss, rtol=1e-13, atol=0)
        for one, other in zip(found_gradients, gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def of_narrow_values(loads: tuple[int, ...]) -> Tensor:
    lo, hi = interval(NUM_SAMPLES, loads, dist.get_rank())
    return sum_over_global(torch.tensor([256.0, 1, 1, 1, 1, 1, 1]).bfloat16()[lo:hi], batch_of(lo, hi))


@pytest.mark.processes
def test_narrow_values_add_up_in_float32(ranks: Ranks) -> None:
    """Of 256 + 1 bfloat16 has no more than 256."""
    for found in ranks.run(3, of_narrow_values, (1, 1, 1)):
        assert (found.item(), found.dtype) == (262.0, torch.float32)


def test_values_of_other_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="needs one row for each of 3 samples, got 2"):
        sum_over_global(torch.zeros(2), batch_of(0, 3))

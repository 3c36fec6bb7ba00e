"""The manual optimizer step follows Lightning's contract, and a guard stops bad losses.

They never reach the weights.
"""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

from lockstep.distributed.collectives import FailedElsewhere
from lockstep.models.step import MAX_PENDING_STEPS, LossGuard, NonFiniteLoss
from lockstep.system import internals
from tests.support.modules import batch_of, classifier
from tests.support.processes import Ranks


def guarded_weights(is_deferred: bool) -> tuple[nn.Parameter, torch.optim.Optimizer, LossGuard]:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=True)
    guard = LossGuard(optimizer, torch.device("cpu"), rank=0, is_deferred=is_deferred)
    return weight, optimizer, guard


@pytest.mark.parametrize(
    "optimizer", [functools.partial(torch.optim.SGD, momentum=0.9), torch.optim.AdamW]
)
@pytest.mark.parametrize("is_last", [False, True])
def test_step_in_memory_order(
    optimizer: Callable[..., torch.optim.Optimizer], is_last: bool
) -> None:
    def updated(step: Callable[[torch.optim.Optimizer], object]) -> list[Tensor]:
        torch.manual_seed(0)
        layers = nn.Sequential(
            nn.Conv2d(3, 70, 3), nn.Conv2d(70, 211, 3), nn.Conv2d(211, 9, 1), nn.Linear(5, 3)
        )
        layers = layers.to(
            memory_format=torch.channels_last if is_last else torch.contiguous_format
        )  # pyright: ignore[reportCallIssue]
        made = optimizer(layers.parameters(), lr=0.1, weight_decay=0.1, fused=True)
        for _ in range(3):
            for parameter in layers.parameters():
                parameter.grad = torch.randn_like(parameter)
            step(made)
        states = [
            value for parameter in layers.parameters() for value in made.state[parameter].values()
        ]
        return [*layers.parameters(), *states]

    for ours, torchs in zip(
        updated(internals.step_in_memory_order), updated(lambda made: made.step()), strict=True
    ):
        assert torch.equal(ours, torchs)
        assert ours.stride() == torchs.stride()


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_guard_immediate(bad: float) -> None:
    _, _, guard = guarded_weights(is_deferred=False)
    guard.check(torch.tensor(1.0), batch_of(0, 2), 7)
    with pytest.raises(
        NonFiniteLoss, match=r"(?s)optimizer step 7 \(epoch 2, micro-batch 4\) on rank 0.*\[0, 1\]"
    ):
        guard.check(torch.tensor(bad), batch_of(0, 3), 7)


def test_guard_deferred() -> None:
    weight, optimizer, guard = guarded_weights(is_deferred=True)
    logged = list[list[float]]()
    for step, loss in enumerate([1.0, float("nan"), 1.0], start=1):
        guard.check(torch.tensor(loss), batch_of(0, 2 * step), step)
        guard.check(torch.tensor(1.0), batch_of(0, 2 * step + 1), step)  # a second micro-batch
        guard.protect(step)
        guard.defer(step, torch.tensor([loss]), logged.append)
        weight.grad = torch.ones(3)
        optimizer.step()
        assert weight.tolist() == [1.0 - step + (step > 1)] * 3, (
            "steps 1 and 3 are applied, step 2 is not"
        )
    with pytest.raises(
        NonFiniteLoss, match=r"optimizer step 2 \(epoch 2, micro-batches 5 to 6\) on rank 0"
    ):
        guard.wait()
    assert logged == [[1.0]]


def test_guard_before_checkpoint() -> None:
    module = classifier(nn.Linear(9, 4))
    _, _, module._guard = guarded_weights(is_deferred=True)
    module._guard.check(torch.tensor(float("nan")), batch_of(0, 0), 1)
    module._guard.protect(1)
    with pytest.raises(NonFiniteLoss, match="optimizer step 1 "):
        module.on_save_checkpoint({})


def _skip_together() -> tuple[list[float], list[int], str]:
    """Return what follows a step that is bad on rank 1.

    That is the weights, the steps after which this rank raised, and the error.
    """
    rank = dist.get_rank()
    weight, optimizer, _ = guarded_weights(is_deferred=True)
    guard = LossGuard(optimizer, torch.device("cpu"), rank=rank, is_deferred=True)
    raised, text = [], ""
    for step in range(1, MAX_PENDING_STEPS + 2):
        guard.check(
            torch.tensor(float("nan") if rank == 1 and step == 1 else 1.0), batch_of(rank, 0), step
        )
        try:
            guard.protect(step)
        except (NonFiniteLoss, FailedElsewhere) as error:
            raised.append(step)
            text = type(error).__name__
        weight.grad = torch.ones(3)
        optimizer.step()
    return weight.tolist(), raised, text


@pytest.mark.processes
def test_guard_all_ranks(ranks: Ranks) -> None:
    results = ranks.run(3, _skip_together)
    assert [weights for weights, _, _ in results] == [[1.0 - MAX_PENDING_STEPS] * 3] * 3, (
        "all steps but the first"
    )
    assert [raised for _, raised, _ in results] == [[MAX_PENDING_STEPS + 1]] * 3
    assert [error for _, _, error in results] == [
        "FailedElsewhere",
        "NonFiniteLoss",
        "FailedElsewhere",
    ]

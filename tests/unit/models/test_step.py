"""The optimizer step by hand against Lightning's contract, and the guard that keeps bad losses from the weights."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd import grad
from torch.profiler import profile

from lockstep.data.loader import ShardDataset, ShardLoader
from lockstep.distributed.collectives import FailedElsewhere
from lockstep.models.classifier import Classifier
from lockstep.models.step import MOST_PENDING, LossGuard, NonFiniteLoss
from lockstep.system import internals
from tests.support.modules import bare_trainer, batch_of, classifier
from tests.support.plans import Plan
from tests.support.processes import Ranks

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:.*LeafSpec.* is deprecated", "ignore:.*no `val_dataloader`"
)

NUM_SAMPLES = 22  # in micro-batches of 4 six, the last of two samples; in pairs of them three steps
HOOKS = ["on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step"]


def fitted(callback: L.Callback, *, clip_norm: float | None = None) -> tuple[L.Trainer, Classifier]:
    """One epoch of three optimizer steps, each of two micro-batches."""
    torch.manual_seed(0)
    module = classifier(
        nn.Sequential(nn.Flatten(), nn.Linear(9, 4)),
        optimizer=functools.partial(torch.optim.SGD, lr=0.1, fused=True),
        total_steps=3,
        accumulate_grad_batches=2,
        gradient_clip_norm=clip_norm,
    )
    trainer = bare_trainer(max_epochs=1, callbacks=[callback])
    source = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (NUM_SAMPLES, 1, 3, 3), dtype=torch.uint8, generator=source)
    images = ShardDataset(pixels, torch.arange(NUM_SAMPLES) % 4)
    batches = Plan(NUM_SAMPLES, micro_batch_size=4, accumulate_grad_batches=2, shuffle_seed=0)
    trainer.fit(module, ShardLoader(images, batches.of()))
    return trainer, module


class Listener(L.Callback):
    """Records the gradient norm of each step, and that of the sum of its losses."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.measured: list[float] = []
        self.expected: list[float] = []
        self._gradients: list[Tensor] = []

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self._gradients.append(
            torch.cat([g.flatten() for g in grad(loss, [*pl_module.parameters()], retain_graph=True)])
        )

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        gradients = [p.grad.norm() for p in pl_module.parameters() if p.grad is not None]
        self.norms.append(torch.stack(gradients).norm().item())
        assert isinstance(pl_module, Classifier)
        assert pl_module.gradient_norm is not None
        self.measured.append(pl_module.gradient_norm.item())
        self.expected.append(torch.stack(self._gradients).sum(0).norm().item())
        self._gradients.clear()


def test_order_of_hooks() -> None:
    callback, calls = L.Callback(), list[str]()
    for hook in HOOKS:
        setattr(callback, hook, lambda *_, hook=hook: calls.append(hook))
    trainer, _ = fitted(callback)
    assert trainer.global_step == trainer.lr_scheduler_configs[0].scheduler.last_epoch == 3
    assert calls == [*HOOKS[:3], *HOOKS[1:]] * 3


@pytest.mark.parametrize("clip_norm", [None, 1e-3])
def test_gradient_of_micro_batches(
    clip_norm: float | None,
) -> None:
    listener = Listener()
    fitted(listener, clip_norm=clip_norm)
    assert listener.measured == pytest.approx(listener.expected, rel=1e-5)
    assert listener.norms == pytest.approx([clip_norm] * 3 if clip_norm else listener.measured, rel=1e-3)


# -- the guard ---------------------------------------------------------------------------------------------------------


def guarded_weights(is_deferred: bool) -> tuple[nn.Parameter, torch.optim.Optimizer, LossGuard]:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=True)
    guard = LossGuard(optimizer, torch.device("cpu"), rank=0, is_deferred=is_deferred)
    return weight, optimizer, guard


@pytest.mark.parametrize("optimizer", [functools.partial(torch.optim.SGD, momentum=0.9), torch.optim.AdamW])
@pytest.mark.parametrize("is_last", [False, True])
def test_step_in_memory_order(optimizer: Callable[..., torch.optim.Optimizer], is_last: bool) -> None:
    copies: list[int] = []  # of each step, ours first

    def updated(step: Callable[[torch.optim.Optimizer], object]) -> list[Tensor]:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(3, 70, 3), nn.Conv2d(70, 211, 3), nn.Conv2d(211, 9, 1), nn.Linear(5, 3))
        layers = layers.to(memory_format=torch.channels_last if is_last else torch.contiguous_format)  # pyright: ignore[reportCallIssue]
        made = optimizer(layers.parameters(), lr=0.1, weight_decay=0.1, fused=True)
        for _ in range(3):
            for parameter in layers.parameters():
                parameter.grad = torch.randn_like(parameter)
            with profile() as profiled:
                step(made)
            copies.append(sum(event.name == "aten::clone" for event in profiled.events() or ()))
        states = [value for parameter in layers.parameters() for value in made.state[parameter].values()]
        return [*layers.parameters(), *states]

    for ours, torchs in zip(updated(internals.step_in_memory_order), updated(lambda made: made.step()), strict=True):
        assert torch.equal(ours, torchs)
        assert ours.stride() == torchs.stride()
    assert copies[:3] == [0, 0, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_guard_immediate(bad: float) -> None:
    _, _, guard = guarded_weights(is_deferred=False)
    guard.check(torch.tensor(1.0), batch_of(0, 2), 7)
    with pytest.raises(NonFiniteLoss, match=r"(?s)optimizer step 7 \(epoch 2, micro-batch 4\) on rank 0.*\[0, 1\]"):
        guard.check(torch.tensor(bad), batch_of(0, 3), 7)


def test_guard_deferred() -> None:
    weight, optimizer, guard = guarded_weights(is_deferred=True)
    for step, loss in enumerate([1.0, float("nan"), 1.0], start=1):
        guard.check(torch.tensor(loss), batch_of(0, 2 * step), step)
        guard.check(torch.tensor(1.0), batch_of(0, 2 * step + 1), step)  # a second micro-batch
        guard.protect(step)
        weight.grad = torch.ones(3)
        optimizer.step()
        assert weight.tolist() == [1.0 - step + (step > 1)] * 3, "steps 1 and 3 are applied, step 2 is not"
    with pytest.raises(NonFiniteLoss, match=r"optimizer step 2 \(epoch 2, micro-batches 5 to 6\) on rank 0"):
        guard.wait()


def test_guard_before_checkpoint() -> None:
    _, module = fitted(L.Callback())
    _, _, module._guard = guarded_weights(is_deferred=True)
    module._guard.check(torch.tensor(float("nan")), batch_of(0, 0), 1)
    module._guard.protect(1)
    with pytest.raises(NonFiniteLoss, match="optimizer step 1 "):
        module.on_save_checkpoint({})


def test_guard_deferred_values() -> None:
    used: list[tuple[int, list[float]]] = []

    def guarded(guard: LossGuard, step: int, loss: float) -> None:
        guard.check(torch.tensor(loss), batch_of(0, step), step)
        guard.protect(step)
        guard.defer(step, torch.tensor([loss, 0.5]), lambda values: used.append((step, values)))

    _, _, guard = guarded_weights(is_deferred=True)
    for step in range(1, MOST_PENDING + 3):
        assert used == [(done, [done, 0.5]) for done in range(1, step - MOST_PENDING)]
        guarded(guard, step, float(step))
    guard.wait()
    assert len(used) == MOST_PENDING + 2
    guarded(guard, MOST_PENDING + 3, float("nan"))
    with pytest.raises(NonFiniteLoss):
        guard.wait()
    assert len(used) == MOST_PENDING + 2, "a bad step is not logged"


def _skip_together() -> tuple[list[float], list[int], str]:
    """The weights after a step that is bad on rank 1, the steps after which this rank raised, and the error."""
    rank = dist.get_rank()
    weight, optimizer, _ = guarded_weights(is_deferred=True)
    guard = LossGuard(optimizer, torch.device("cpu"), rank=rank, is_deferred=True)
    raised, text = [], ""
    for step in range(1, MOST_PENDING + 2):
        guard.check(torch.tensor(float("nan") if rank == 1 and step == 1 else 1.0), batch_of(rank, 0), step)
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
    assert [weights for weights, _, _ in results] == [[1.0 - MOST_PENDING] * 3] * 3, "all steps but the first"
    assert [raised for _, raised, _ in results] == [[MOST_PENDING + 1]] * 3
    assert [error for _, _, error in results] == ["FailedElsewhere", "NonFiniteLoss", "FailedElsewhere"]


def test_guard_frees_pixels() -> None:
    _, _, guard = guarded_weights(is_deferred=True)
    batch = batch_of(0, 0)._replace(inputs=torch.zeros(2, 1, 8, 8))
    pixels = weakref.ref(batch.inputs)
    guard.check(torch.tensor(1.0), batch, 1)
    guard.protect(1)
    del batch
    assert pixels() is None

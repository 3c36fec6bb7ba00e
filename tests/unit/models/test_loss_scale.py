"""Trainings in float16 against a plain loop with torch's GradScaler.

Gradients overflow in known steps.
"""

import functools
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn

from lockstep.callbacks.average import AveragedWeights
from lockstep.data.loader import ShardDataset, ShardLoader
from lockstep.models.classifier import Classifier
from lockstep.models.schedules import Schedule, one_cycle_linear
from lockstep.models.step import NonFiniteGradient, NonFiniteLoss
from tests.support.modules import bare_trainer, classifier
from tests.support.networks import Overflows
from tests.support.plans import Plan

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:.*LeafSpec.* is deprecated",
    "ignore:.*no `val_dataloader`", "ignore:Detected call of `lr_scheduler.step",
    "ignore:.*set to a `warn_only`", "ignore:.*Checkpoint directory",
)  # fmt: skip

GROWTH_INTERVAL = 3  # torch's default is 2,000
SIZE, NUM_STEPS, NUM_EPOCHS = 8, 4, 3  # samples of a step, and steps of an epoch
EVERY = list(range(NUM_STEPS))


def images(overflowing: list[int]) -> ShardDataset:
    """Samples in their order.

    The last one of every step in `overflowing` has a gradient that overflows.
    """
    source = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 200, (SIZE * NUM_STEPS, 1, 3, 3), dtype=torch.uint8, generator=source)
    pixels[[SIZE * step + SIZE - 1 for step in overflowing], 0, 0, 0] = 255
    return ShardDataset(pixels, torch.arange(len(pixels)) % 4)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), Overflows(9, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)
    )


def optimizer(*, is_fused: bool) -> Callable[..., torch.optim.SGD]:
    return functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=is_fused)


class Follows(L.Callback):
    """Records the scale and the gradient norm of every step.

    Saves the state after the first epoch.
    """

    def __init__(self, saved: Path | None = None) -> None:
        self.scales: list[float] = []
        self.norms: list[float] = []
        self._saved = saved

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        scale_of(pl_module)._scaler.set_growth_interval(GROWTH_INTERVAL)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, Classifier)
        if len(self.scales) < trainer.global_step:
            self.scales.append(scale_of(pl_module)._scaler.get_scale())
            assert pl_module.gradient_norm is not None
            self.norms.append(pl_module.gradient_norm.item())

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._saved is not None and trainer.current_epoch == 0:
            trainer.save_checkpoint(self._saved)


def scale_of(module: L.LightningModule) -> Any:
    assert isinstance(module, Classifier)
    return module.loss_scale


def trained(
    overflowing: list[int],
    *callbacks: L.Callback,
    is_fused: bool = True,
    clip_norm: float | None = None,
    num_parts: int = 1,
    resumed: Path | None = None,
    num_epochs: int = NUM_EPOCHS,
) -> Classifier:
    module = classifier(
        network(),
        autocast=torch.float16,
        optimizer=optimizer(is_fused=is_fused),
        scheduler=Schedule(functools.partial(one_cycle_linear, warmup_fraction=0.25)),
        total_steps=NUM_STEPS * num_epochs,
        accumulate_grad_batches=num_parts,
        gradient_clip_norm=clip_norm,
    )
    trainer = bare_trainer(max_epochs=num_epochs, callbacks=[*callbacks])
    data = images(overflowing)
    batches = Plan(len(data.targets), SIZE // num_parts, num_parts, shuffle_seed=None)
    trainer.fit(module, ShardLoader(data, batches.of()), ckpt_path=resumed, weights_only=True)
    return module


def by_torch(
    overflowing: list[int], *, is_fused: bool, clip_norm: float | None, num_parts: int
) -> tuple[nn.Module, list[float], list[float]]:
    """Train in a plain loop.

    Returns the network, and the scale and the gradient norm after each step.
    """
    net, data = network(), images(overflowing)
    shapes = [
        [p for p in net.parameters() if (p.ndim > 1) == is_matrix] for is_matrix in (True, False)
    ]
    optim = optimizer(is_fused=is_fused)([{"params": parameters} for parameters in shapes])
    schedule = one_cycle_linear(optim, NUM_STEPS * NUM_EPOCHS, warmup_fraction=0.25)
    scaler = torch.amp.GradScaler("cpu", growth_interval=GROWTH_INTERVAL)
    scales, norms = [], []
    for step in range(NUM_STEPS * NUM_EPOCHS):
        optim.zero_grad()
        samples = torch.arange(SIZE) + SIZE * (step % NUM_STEPS)
        for part in samples.chunk(num_parts):
            with torch.autocast("cpu", torch.float16):
                outputs = net((data.pixels[part].float() - 127.5) / 63.75)
            loss = F.cross_entropy(outputs.float(), data.targets[part], reduction="none").sum() * (
                1 / SIZE
            )
            scaler.scale(loss).backward()
        scaler.unscale_(optim)
        norms.append(
            nn.utils.clip_grad_norm_([*shapes[0], *shapes[1]], clip_norm or math.inf).item()
        )
        scaler.step(optim)
        scaler.update()
        schedule.step()
        scales.append(scaler.get_scale())
    return net, scales, norms


@pytest.mark.parametrize(
    ("is_fused", "num_parts", "clip_norm"), [(True, 1, None), (True, 2, 0.05), (False, 1, 0.05)]
)
def test_training_as_grad_scaler(is_fused: bool, num_parts: int, clip_norm: float | None) -> None:
    expected, scales, norms = by_torch(
        [1], is_fused=is_fused, num_parts=num_parts, clip_norm=clip_norm
    )
    follows = Follows()
    module = trained([1], follows, is_fused=is_fused, num_parts=num_parts, clip_norm=clip_norm)
    assert scales == [
        2.0**exponent for exponent in (16, 15, 15, 15, 16, 15, 15, 15, 16, 15, 15, 15)
    ]
    assert follows.scales == scales
    assert [norm for norm in follows.norms if math.isfinite(norm)] == [
        n for n in norms if math.isfinite(n)
    ]
    assert scale_of(module).num_skipped == sum(not math.isfinite(norm) for norm in norms) == 3
    for name, value in module.net.state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name], rtol=0, atol=0)


def test_first_step_skipped() -> None:
    """The oracle is not torch's fused SGD.

    Its momentum would be memory that was never written.
    """
    expected, scales, _ = by_torch([0], is_fused=False, num_parts=1, clip_norm=None)
    follows = Follows()
    module = trained([0], follows)
    assert follows.scales == scales
    for name, value in module.net.state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_resume(tmp_path: Path) -> None:
    uncut, cut = Follows(tmp_path / "saved.ckpt"), Follows()
    expected = trained([1], uncut)
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)["loss_scale"]
    assert (saved["scaler"]["_growth_tracker"], saved["num_skipped"]) == (2, 1)
    module = trained([1], cut, resumed=tmp_path / "saved.ckpt")
    assert cut.scales == uncut.scales[NUM_STEPS:]
    assert scale_of(module).num_skipped == 3
    for one, other in zip(module.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other)


def test_average_without_skipped_steps() -> None:
    averages: list[Tensor] = []

    class Looks(AveragedWeights):
        def on_train_batch_end(
            self,
            trainer: L.Trainer,
            pl_module: L.LightningModule,
            outputs: Any,
            batch: Any,
            batch_idx: int,
        ) -> None:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            model = self._average_model
            assert model is not None
            averaged = (
                value for value in model.module.state_dict().values() if value.is_floating_point()
            )
            averages.append(torch.cat([value.double().flatten() for value in averaged]))

    trained([1, 3], Looks(multi_avg_fn=get_ema_multi_avg_fn(0.5)))
    is_kept = [torch.equal(one, other) for one, other in itertools.pairwise(averages)]
    assert is_kept == [step in (1, 3) for step in EVERY * NUM_EPOCHS][1:]


def test_scale_below_one() -> None:
    with pytest.raises(NonFiniteGradient, match=r"optimizer step 17 though "):
        trained(EVERY, num_epochs=5)


def test_loss_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Overflows, "forward", lambda self, x: self.linear(x) * math.inf)
    with pytest.raises(NonFiniteLoss, match="optimizer step 1 "):
        trained([])

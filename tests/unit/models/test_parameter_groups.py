"""Parameter groups and schedules in a fit, against a plain loop over the same batches."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from lockstep.data.loader import ShardDataset, ShardLoader
from lockstep.models.parameter_groups import ParameterGroups, ParameterRule
from lockstep.models.schedules import Schedule, constant, cosine
from lockstep.tasks import Task
from tests.support.modules import bare_trainer, classifier
from tests.support.plans import Plan

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*LeafSpec.* is deprecated",
    "ignore:.*in eval mode at the start",
)
EPOCHS, STEPS = 3, 2  # of eight images each
HEAD = ParameterRule("head", "^4", lr_factor=10.0, weight_decay=0.0)
RULES = (
    HEAD,
    ParameterRule("norm", "^1", frozen_epochs=None),
    ParameterRule("first", "^0", frozen_epochs=2),
)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 3, 2, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 4),
    )
    return nn.Sequential(*layers).double()


class Batches(L.Callback):
    """Keeps what was trained on, and the learning rates."""

    def __init__(self, cut: Path | None) -> None:
        self.cut = cut
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.rates: list[float] = []

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.kept.append((batch.inputs.clone(), batch.targets))
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.cut is not None and trainer.current_epoch + 1 == EPOCHS:
            trainer.save_checkpoint(self.cut)


def fitted(
    net: nn.Module,
    rules: tuple[ParameterRule, ...],
    make: Callable[..., LRScheduler] = constant,
    *,
    epochs: int = EPOCHS,
    cut: Path | None = None,
    resumed: Path | None = None,
) -> Batches:
    """Fit for `epochs`, from the checkpoint `resumed` on; `cut` is written after EPOCHS of them."""
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
    module = classifier(
        net, optimizer=optimizer, scheduler=Schedule(make), rules=rules, total_steps=epochs * STEPS
    )
    batches = Batches(cut)
    trainer = bare_trainer(max_epochs=epochs, callbacks=[batches])
    pixels = torch.randint(
        0, 256, (16, 1, 3, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    images = ShardDataset(pixels, torch.arange(16) % 4)
    loaders = [ShardLoader(images, Plan(16, shuffle_seed=seed).of()) for seed in (0, None)]
    trainer.fit(module.double(), loaders[0], loaders[1], ckpt_path=resumed, weights_only=True)
    return batches


def test_rules_as_plain_loop() -> None:
    net = network()
    expected = copy.deepcopy(net)
    batches = fitted(net, RULES)
    conv, norm, _, _, fc = expected
    norm.eval()
    head = [{"params": [fc.weight, fc.bias], "lr": 1.0}]  # ten times the rate, and no decay
    heads = torch.optim.SGD(head, momentum=0.9)
    rest = torch.optim.SGD(conv.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for number, (pixels, targets) in enumerate(batches.kept):
        images = (pixels.double() - 127.5) / 63.75
        loss = F.cross_entropy(expected(images), targets)
        expected.zero_grad()
        loss.backward()
        heads.step()
        if number >= 2 * STEPS:
            rest.step()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value, rtol=1e-12, atol=1e-12)


def test_norm_frozen_for_epochs() -> None:
    net = network()
    groups = ParameterGroups(net, Task(), (ParameterRule("norm", "^1", frozen_epochs=2),))
    modes = []
    for epoch in range(3):
        groups.start_epoch(epoch)
        modes.append(net[1].training)
    assert modes == [False, False, True]


def test_lr_factor_any_schedule() -> None:
    """One factor for all is a schedule whose rates are larger."""
    factor = 3.0
    one, other = network(), network()
    make = functools.partial(OneCycleLR, max_lr=0.2, cycle_momentum=False)
    rates = fitted(one, (ParameterRule("all", "", lr_factor=factor),), make).rates
    assert (
        rates
        == fitted(other, (), functools.partial(OneCycleLR, max_lr=0.2, cycle_momentum=False)).rates
    )
    expected = network()
    fitted(expected, (), functools.partial(OneCycleLR, max_lr=0.2 * factor, cycle_momentum=False))
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(one.state_dict()[name], value, rtol=1e-12, atol=1e-12)


def sequence(optimizer: Any, total_steps: int) -> LRScheduler:
    parts: list[LRScheduler] = [
        LinearLR(optimizer, 0.1, 1.0, 2),
        CosineAnnealingLR(optimizer, total_steps - 2),
    ]
    return SequentialLR(optimizer, parts, [2])


def chain(optimizer: Any, total_steps: int) -> LRScheduler:
    parts = [
        PolynomialLR(optimizer, total_steps, power=2.0),
        ConstantLR(optimizer, 0.5, total_steps // 2),
    ]
    return ChainedScheduler(parts, optimizer)


KEEP_THEIR_LENGTH: dict[str, Callable[..., LRScheduler]] = {
    "one cycle": functools.partial(OneCycleLR, max_lr=0.2),
    "cosine annealing": lambda optimizer, total_steps: CosineAnnealingLR(
        optimizer, T_max=total_steps
    ),
    "one after the other": sequence,
    "several at once": chain,
    "no length at all": functools.partial(
        ReduceLROnPlateau, patience=0, threshold=10.0, threshold_mode="abs", factor=0.5
    ),
    "of Lockstep": functools.partial(cosine, warmup_fraction=0.3, final_fraction=0.1),
}


@pytest.mark.parametrize("name", KEEP_THEIR_LENGTH)
def test_resume_more_epochs(name: str, tmp_path: Path) -> None:
    """Also where the end of the old length, at the rate 0, was reached."""
    make, path = KEEP_THEIR_LENGTH[name], tmp_path / "cut.ckpt"
    fitted(network(), (), make, cut=path)
    longer = fitted(network(), (), make, epochs=2 * EPOCHS, resumed=path)
    uncut = fitted(network(), (), make, epochs=2 * EPOCHS)
    assert longer.rates == uncut.rates[EPOCHS * STEPS :]


def test_wrong_schedules_refused() -> None:
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="has mode=min, but val/accuracy needs mode=max"):
        Schedule(lambda optimizer: ReduceLROnPlateau(optimizer, "min")).build(optimizer, 10)
    with pytest.raises(TypeError, match="returns a dict, not a schedule of torch"):
        Schedule(lambda optimizer: {}).build(optimizer, 10)  # pyright: ignore[reportArgumentType]

"""Parts of a network with rates, decay and freezing of their own, against a plain loop over the same batches."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau, StepLR

from lockstep.data.loader import ShareLoader, TensorImages
from lockstep.data.sampler import GlobalBatches
from lockstep.models.parameter_groups import ParameterGroups, ParameterRule
from lockstep.models.schedules import Schedule, constant
from lockstep.tasks import Task
from tests.support.modules import classifier

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:.*LeafSpec.* is deprecated", "ignore:.*in eval mode at the start"
)
EPOCHS, STEPS = 3, 2  # of eight images each
HEAD = ParameterRule("head", "^4", lr_factor=10.0, weight_decay=0.0)
RULES = (HEAD, ParameterRule("norm", "^1", frozen_epochs=None), ParameterRule("first", "^0", frozen_epochs=2))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 3, 2, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))
    return nn.Sequential(*layers).double()


class Batches(L.Callback):
    """Keeps what was trained on, and what the network was like after every epoch."""

    def __init__(self) -> None:
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.states: list[dict[str, Tensor]] = []
        self.rates: list[float] = []

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.kept.append((batch.inputs.clone(), batch.targets))
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        net: Any = pl_module.net
        self.states.append({name: value.clone() for name, value in net.state_dict().items()})


def fitted(
    net: nn.Module, rules: tuple[ParameterRule, ...], make: Callable[..., LRScheduler] = constant, **changes: Any
) -> Batches:
    schedule = Schedule(make, **changes)
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
    module = classifier(net, optimizer=optimizer, scheduler=schedule, rules=rules, total_steps=EPOCHS * STEPS)
    batches = Batches()
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        num_sanity_val_steps=0,
        accelerator="cpu",
        logger=False,
        callbacks=[batches],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    pixels = torch.randint(0, 256, (16, 1, 3, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    images = TensorImages(pixels, torch.arange(16) % 4)
    loaders = [
        ShareLoader(
            images,
            GlobalBatches(
                16,
                global_batch_size=8,
                accumulate_grad_batches=1,
                shuffle_seed=seed,
                rank=0,
                loads=[1],
                num_batches=None,
            ),
        )
        for seed in (0, None)
    ]
    trainer.fit(module.double(), loaders[0], loaders[1])
    return batches


def test_rates_decay_and_freezing_are_those_of_a_loop_by_hand() -> None:
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


def test_a_part_is_still_while_it_is_frozen_and_moves_from_its_epoch_on() -> None:
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    rules = (ParameterRule("features", "^[01]", frozen_epochs=2),)
    states = fitted(net, rules).states
    for name, value in before.items():
        is_part = name.startswith(("0", "1"))
        assert [torch.equal(state[name], value) for state in states] == [is_part, is_part, False], name
    assert net[1].training


def test_what_is_frozen_for_good_has_no_gradient_and_its_norm_keeps_its_statistics() -> None:
    net = network()
    before = copy.deepcopy(net.state_dict())
    fitted(net, (ParameterRule("features", "^[01]", frozen_epochs=None),))
    after = net.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"4.weight", "4.bias"}
    assert all(p.grad is None for part in net[:2] for p in part.parameters())


def test_the_first_rule_counts_and_the_rest_comes_first() -> None:
    net = network()
    rules = (ParameterRule("bias", "bias$", lr_factor=2.0), ParameterRule("conv", "^0", weight_decay=0.5))
    groups = ParameterGroups(net, Task(), rules).for_optimizer(0.1)
    rest, norm, biases, conv = groups
    assert [id(p) for p in norm["params"]] == [id(net[1].weight)]
    assert [id(p) for p in rest["params"]] == [id(net[4].weight)]
    assert [id(p) for p in biases["params"]] == [id(net[1].bias), id(net[4].bias)]
    assert conv == {"params": [net[0].weight], "weight_decay": 0.5}


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_a_factor_multiplies_every_schedule_also_one_that_sets_its_own_rates(factor: float) -> None:
    """One factor for all is a schedule whose rates are larger."""
    one, other = network(), network()
    make = functools.partial(OneCycleLR, max_lr=0.2, cycle_momentum=False)
    rates = fitted(one, (ParameterRule("all", "", lr_factor=factor),), make).rates
    assert rates == fitted(other, (), functools.partial(OneCycleLR, max_lr=0.2, cycle_momentum=False)).rates
    expected = network()
    fitted(expected, (), functools.partial(OneCycleLR, max_lr=0.2 * factor, cycle_momentum=False))
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(one.state_dict()[name], value, rtol=1e-12, atol=1e-12)


def test_a_schedule_without_a_number_of_steps_is_stepped_by_steps_or_by_epochs() -> None:
    halving = functools.partial(StepLR, step_size=1, gamma=0.5)
    assert fitted(network(), (), halving).rates == [0.1 * 0.5**step for step in range(EPOCHS * STEPS)]
    by_epoch = fitted(network(), (), halving, interval="epoch").rates
    assert by_epoch == [0.1 * 0.5**epoch for epoch in range(EPOCHS) for _ in range(STEPS)]


@pytest.mark.parametrize(("mode", "monitor"), [("max", "val/accuracy"), ("min", "val/loss")])
def test_a_schedule_that_waits_for_better_values_hears_of_every_validation(mode: Any, monitor: str) -> None:
    seen: list[tuple[str, float]] = []

    class Recording(ReduceLROnPlateau):
        def step(self, metrics: Any, epoch: Any = None) -> None:
            seen.append((self.mode, metrics))
            super().step(metrics)

    make = functools.partial(
        Recording, patience=0, threshold=10.0, threshold_mode="abs", factor=0.5
    )  # no value is so much better
    rates = fitted(network(), (), make, monitor=monitor, mode=mode).rates
    assert len(seen) == EPOCHS
    assert all(found == mode for found, _ in seen)
    assert rates == [rate for rate in (0.1, 0.1, 0.05) for _ in range(STEPS)]


def test_a_schedule_that_takes_the_worst_for_the_best_is_refused() -> None:
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)

    def backwards(optimizer: Any) -> LRScheduler:
        return ReduceLROnPlateau(optimizer, mode="min")

    with pytest.raises(ValueError, match="goes by mode=min, but of val/accuracy the max is best"):
        Schedule(backwards).of(optimizer, 10)
    with pytest.raises(TypeError, match="returns a dict, which is none of torch"):
        Schedule(lambda optimizer: {}).of(optimizer, 10)  # pyright: ignore[reportArgumentType]

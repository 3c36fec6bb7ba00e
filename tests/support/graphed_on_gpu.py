"""A module replayed as CUDA graphs: what it computes and refuses.

tests/unit/models/test_graphs.py runs these functions on a GPU.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.distributed import rng
from lockstep.distributed.partition import Shard
from lockstep.models.graphs import NUM_EAGER, GraphedModule
from tests.support.modules import classifier
from tests.support.networks import Plain


def of_step(step: int, size: int = 4) -> tuple[Tensor, Shard]:
    torch.manual_seed(step)
    pixels = torch.randint(256, (size, 1, 3, 3), dtype=torch.uint8).cuda()
    return pixels, Shard(
        epoch=0, step=step, micro_step=step, size=size, lo=0, hi=size, group_size=size
    )


def small() -> Plain:
    """A network, one parameter of which is not used and has no gradient."""
    torch.manual_seed(0)
    net = Plain(in_channels=1, num_classes=4, hidden=4)
    net.unused = nn.Parameter(torch.ones(3))
    return net


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [
        None if parameter.grad is None else parameter.grad.clone()
        for parameter in module.parameters()
    ]


class Pair:
    """The same module graphed and eager."""

    def __init__(self, net: nn.Module) -> None:
        self.module, self.eager = (classifier(own).cuda() for own in (copy.deepcopy(net), net))
        self.graphed = GraphedModule(self.module, self.module.dropouts, accumulates=False)
        self.kept: list[tuple[Tensor, Tensor]] = []  # outputs, as a task may keep them

    @property
    def num_keys(self) -> int:
        return sum(graphs is not None for graphs in self.graphed._graphs.values())

    def assert_equal(self, step: int, size: int = 4) -> None:
        inputs, shard = of_step(step, size)
        for dropout in (*self.module.dropouts, *self.eager.dropouts):
            dropout.shard = shard
        found: list[Tensor] = []
        for module, outputs_of in (
            (self.module, partial(self.graphed, shard=shard)),
            (self.eager, self.eager),
        ):
            outputs = outputs_of(inputs)
            module.zero_grad()
            outputs.square().sum().backward()
            found.append(outputs.detach())
        self.kept.append((found[0], found[1]))
        assert all(torch.equal(*values) for values in self.kept), step
        for one, other in zip(gradients(self.module), gradients(self.eager), strict=True):
            assert one is other is None or (
                one is not None and other is not None and torch.equal(one, other)
            ), step
        state = self.eager.state_dict()
        assert all(
            torch.equal(value, state[name]) for name, value in self.module.state_dict().items()
        ), step
        with torch.no_grad():
            for parameter in (*self.module.parameters(), *self.eager.parameters()):
                parameter += 0.01


def test_passes_as_eager() -> None:
    pair = Pair(small())
    for step, size in enumerate((4, 4, 2, 4, 4, 2, 2, 4, 2)):
        pair.assert_equal(step, size)
    assert pair.num_keys == 2


class DropsTwice(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.dropout(x))


def test_dropout_as_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng, "GPU_BLOCK", 8)  # samples: eight in the first use, two in the second
    pair = Pair(DropsTwice(in_channels=1, num_classes=4, hidden=4))
    for step, size in enumerate((4, 4, 3, 3, 4, 4, 3, 3)):
        pair.assert_equal(step, size)
    assert pair.num_keys == 2


def test_gradients_of_shards_add_up() -> None:
    module = classifier(small()).cuda()
    graphed = GraphedModule(module, module.dropouts, accumulates=True)
    sums: list[list[Tensor | None]] = []
    for _ in range(NUM_EAGER + 2):
        module.zero_grad()
        for number, lo in enumerate((0, 0, 4)):
            inputs, shard = of_step(number)
            shard = shard._replace(step=0, lo=lo, hi=lo + 4, group_size=8)
            module.dropouts[0].shard = shard
            graphed(inputs, shard).square().sum().backward()
        sums.append(gradients(module))
    for found in sums[1:]:
        assert all(
            one is not None and one.equal(other)
            for one, other in zip(sums[0], found, strict=True)
            if other is not None
        )


CHANGES: dict[str, Callable[[Any], object]] = {
    "rate": lambda net: setattr(net.dropout, "p", 0.6),
    "memory of parameters": lambda net: setattr(net.conv.bias, "data", 2 * net.conv.bias.data),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_change_has_other_graphs(change: Callable[[Any], object]) -> None:
    pair = Pair(small())
    for step in range(4):
        pair.assert_equal(step)
    for net in (pair.module.net, pair.eager.net):
        change(net)
    for step in range(4):
        pair.assert_equal(4 + step)
        assert pair.num_keys == (step >= NUM_EAGER)


class Counts(nn.Module):
    """Computes something else in every pass."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(9, 4)
        self.number = 0

    def forward(self, x: Tensor) -> Tensor:
        self.number += 1
        return self.fc(x.flatten(1)) * self.number


class Replaces(Plain):
    """Assigns another tensor to a buffer."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return super().forward(x - self.mean)


REFUSED: dict[Callable[..., nn.Module], str] = {
    Counts: "does not compute the same in every pass",
    Replaces: "the network replaces its buffer net.mean",
}


@pytest.mark.parametrize("network", REFUSED)
def test_not_capturable_is_eager(
    network: Callable[..., nn.Module], capsys: pytest.CaptureFixture[str]
) -> None:
    pair = Pair(network(in_channels=1, num_classes=4, hidden=4))
    for step in range(2 * NUM_EAGER):
        if network is Counts:
            pair.graphed(*of_step(step))
        else:
            pair.assert_equal(step)
        assert pair.num_keys == 0
    assert REFUSED[network] in capsys.readouterr().err


def doubled(layer: nn.Module, inputs: Any, outputs: Any) -> Tensor:
    return 2 * outputs


def test_hooks_end_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    pair = Pair(small())
    for step in range(3 * NUM_EAGER):
        if step == NUM_EAGER + 1:
            assert pair.num_keys == 1
            for module in (pair.module, pair.eager):
                module.get_submodule("net.conv").register_forward_hook(doubled)
        pair.assert_equal(step)
    assert pair.num_keys == 0
    assert "a layer has hooks" in capsys.readouterr().err


def test_scarce_memory_is_eager(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The graphs take 3 GiB and leave 1, which eager passes of other shards need."""
    free = iter([4 * 2**30, 2**30])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (next(free), 4 * 2**30))
    pair = Pair(small())
    for step in range(2 * NUM_EAGER):
        pair.assert_equal(step)
    assert pair.num_keys == 0
    assert "they take 3.0 GiB" in capsys.readouterr().err

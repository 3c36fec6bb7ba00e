"""Random draws of a network are tried on a copy, and one rank loads its pretrained weights."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.assembly.networks import refuse_draws
from lockstep.assembly.pretrained_weights import load_pretrained
from lockstep.config.errors import ConfigError
from lockstep.config.overrides import plan
from lockstep.config.schema.configuration import Config
from lockstep.models.pretrained_metadata import Origin
from tests.support.harness import own_network
from tests.support.networks import Plain

SHAPE = (1, 16, 16)


class DropsByFunction(Plain):
    """Drops outputs by a function."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(super().forward(x), training=self.training)


@pytest.fixture(scope="module")
def config() -> Config:
    return plan(own_network("Plain")).configs[0]


def test_refuse_draws_changes_nothing(config: Config) -> None:
    net = Plain(1, 10, 4)
    layers, before = (
        dict(net.named_modules()),
        {name: value.clone() for name, value in net.state_dict().items()},
    )
    drawn = torch.get_rng_state()
    refuse_draws(config, net, SHAPE)
    assert dict(net.named_modules()) == layers
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_refuse_draws_functional(config: Config) -> None:
    with pytest.raises(
        ConfigError,
        match=r"the layer '' \(DropsByFunction\) draws random numbers that differ between workers",
    ):
        refuse_draws(config, DropsByFunction(1, 10, 4), SHAPE)


def test_refuse_draws_network_not_copied(config: Config) -> None:
    net = DropsByFunction(1, 10, 4)
    # torch copies no tensor that has been computed with a gradient
    net.register_buffer("scaled", net.fc.bias * 2)
    refuse_draws(config, net, SHAPE)


@pytest.mark.parametrize("rank", [0, 1])
def test_load_pretrained_rank_0(config: Config, rank: int) -> None:
    drawn: list[Tensor] = []
    net: Any = Plain(1, 10, 4)
    net.origin = Origin(load=lambda: drawn.append(torch.rand(1)))
    session: Any = SimpleNamespace(
        config=config,
        rank=rank,
        is_shown=rank == 0,
        on_rank_0=lambda work: work() if rank == 0 else None,
    )
    before = torch.get_rng_state()
    load_pretrained(session, net)
    assert len(drawn) == (rank == 0)
    assert torch.equal(torch.get_rng_state(), before)

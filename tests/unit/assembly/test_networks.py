"""What a network draws is tried on a copy of it, and the weights it brings along are loaded by one rank."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.assembly.network_checks import refuse_draws
from lockstep.assembly.networks import _layout
from lockstep.assembly.pretrained_weights import load_pretrained
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError
from lockstep.config.overrides import plan
from lockstep.config.schema.configuration import Config
from lockstep.models.origin import Origin
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


def test_a_network_that_is_tried_stays_as_it_is(config: Config) -> None:
    net = Plain(1, 10, 4)
    layers, before = dict(net.named_modules()), {name: value.clone() for name, value in net.state_dict().items()}
    drawn = torch.get_rng_state()
    refuse_draws(config, net, SHAPE)
    assert dict(net.named_modules()) == layers
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_draw_of_a_function_is_refused_with_its_layer(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"the layer '' \(DropsByFunction\) draws random numbers by a function"):
        refuse_draws(config, DropsByFunction(1, 10, 4), SHAPE)


def test_a_network_that_cannot_be_copied_is_left_to_its_first_step(config: Config) -> None:
    net = DropsByFunction(1, 10, 4)
    net.register_buffer("scaled", net.fc.bias * 2)  # torch copies no tensor that has been computed with a gradient
    refuse_draws(config, net, SHAPE)


@pytest.mark.parametrize("rank", [0, 1])
def test_weights_are_asked_for_by_the_first_rank_alone_and_move_no_random_number(config: Config, rank: int) -> None:
    drawn: list[Tensor] = []
    net: Any = Plain(1, 10, 4)
    net.origin = Origin(load=lambda: drawn.append(torch.rand(1)))
    session: Any = SimpleNamespace(config=config, rank=rank)
    before = torch.get_rng_state()
    load_pretrained(session, net)
    assert len(drawn) == (rank == 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("report", [None, "8 of 9 tensors taken; new: fc.bias"])
@pytest.mark.parametrize(("silent", "rank"), [(False, 0), (True, 0), (False, 1)])
def test_a_file_of_weights_is_used_with_a_line_about_what_fitted_and_its_images(
    capsys: pytest.CaptureFixture[str], silent: bool, rank: int, report: str | None
) -> None:
    network = ("model=timm", "model.name=resnet18", "model.pretrained=w.pth", f"silent={str(silent).lower()}")
    view = ("data=image_folder", "data.root=x", "data.crop_percent=0.9", "data.interpolation=bicubic")
    net: Any = Plain(1, 10, 4)
    net.origin = Origin(load=lambda: report)
    session: Any = SimpleNamespace(config=validation.check_config(compose.compose_config([*network, *view])), rank=rank)
    load_pretrained(session, net)
    said = "images are normalized as for timm's own weights of resnet18 and seen with"
    said = f"{said} data.crop_percent=0.9 data.interpolation=bicubic"
    line = f"model.pretrained=w.pth: {said if report is None else f'{report}; {said}'}\n"
    assert capsys.readouterr().out == ("" if silent or rank else line)


def test_a_network_that_is_a_faulty_convolution_itself_is_contiguous() -> None:
    config = SimpleNamespace(trainer=SimpleNamespace(memory_format="auto"))
    session: Any = SimpleNamespace(device=torch.device("cpu"), precision="float32", config=config)
    assert _layout(session, nn.Conv2d(1, 10, 1, stride=2), is_trained=True).name == "contiguous"

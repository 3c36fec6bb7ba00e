"""Parameters and FLOPs of networks against the numbers that torchvision publishes."""

from typing import Any

import pytest
from torchvision import models

from lockstep.models.layers import layers_of


@pytest.mark.parametrize("name", ["resnet18", "vit_b_16"])  # whose attention torch counts with gradients only
def test_parameters_and_flops_are_those_of_torchvision(name: str) -> None:
    known: Any = models.get_model_weights(name)
    layers = {layer.name: layer for layer in layers_of(models.get_model(name, weights=None), (3, 224, 224))}
    meta = known.DEFAULT.meta
    assert layers[""].parameters == meta["num_params"]
    assert layers[""].flops / 2e9 == pytest.approx(meta["_ops"], abs=1e-3)
    first = layers["conv1" if name == "resnet18" else "conv_proj"]
    assert first.output == ((64, 112, 112) if name == "resnet18" else (768, 14, 14))
    assert first.flops == 2 * first.parameters * 112 * 112 if name == "resnet18" else first.flops > 0

"""Parameters and FLOPs of networks against the numbers that torchvision publishes."""

from typing import Any

import pytest
from torchvision import models

from lockstep.cli.model import summary_of


# whose attention torch counts without its fast path only
@pytest.mark.parametrize("name", ["resnet18", "vit_b_16"])
def test_summary_as_torchvision(name: str) -> None:
    known: Any = models.get_model_weights(name)
    summary = summary_of(models.get_model(name, weights=None), (3, 224, 224), 1)
    meta = known.DEFAULT.meta
    assert summary.total_parameters == meta["num_params"]
    assert summary.total_flops / 2e9 == pytest.approx(meta["_ops"], abs=1e-3)
    row = summary.layer_names.index("net.conv1" if name == "resnet18" else "net.conv_proj")
    assert summary.out_sizes[row] == ([1, 64, 112, 112] if name == "resnet18" else [1, 768, 14, 14])

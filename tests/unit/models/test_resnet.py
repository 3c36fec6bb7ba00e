from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models import resnet18

from lockstep.models.resnet import ResNet18, _widen_channels

SMALL: dict[str, Any] = {
    "in_channels": 1, "num_classes": 10, "width": 32, "stem": "small", "shortcut_norm": False,
    "bias": True, "dropout": 0.0,
}  # fmt: skip
IMAGENET: dict[str, Any] = {
    "in_channels": 3, "num_classes": 1000, "width": 64, "stem": "imagenet", "shortcut_norm": True,
    "bias": False, "dropout": 0.0, "init": "kaiming",
}  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
def test_as_torchvision(training: bool) -> None:
    torch.manual_seed(0)
    ours, theirs = ResNet18(**IMAGENET).double(), resnet18(weights=None).double()
    shapes = {name: tensor.shape for name, tensor in theirs.state_dict().items()}
    assert {name: tensor.shape for name, tensor in ours.state_dict().items()} == shapes
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 70, 96, dtype=torch.float64)
    ours.train(training)
    theirs.train(training)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-10, atol=1e-10)


def test_widen_channels() -> None:
    """What the stem computes on a GPU in 16 bits; an empty shard, too."""
    layer = nn.Conv2d(1, 4, 3, stride=2, padding=1).double()
    images = torch.randn(3, 1, 5, 6, dtype=torch.float64)
    for x in (images, images[:0]):
        y = F.conv2d(
            _widen_channels(x),
            _widen_channels(layer.weight),
            layer.bias,
            layer.stride,
            layer.padding,
        )
        torch.testing.assert_close(y, layer(x), rtol=1e-12, atol=1e-12)
    assert _widen_channels(images).is_contiguous(memory_format=torch.channels_last)
    assert not _widen_channels(images).is_contiguous()


@pytest.mark.parametrize("init", ["kaiming", "normal", "normal_zero", "torch"])
def test_init_deviation(init: Any) -> None:
    torch.manual_seed(0)
    for layer in ResNet18(**SMALL, init=init).modules():
        if isinstance(layer, nn.Conv2d):
            size = layer.kernel_size[0] ** 2
            by_fan_out, by_fan_in = (
                2 / (layer.out_channels * size),
                1 / (3 * layer.in_channels * size),
            )
            drawn = {"kaiming": by_fan_out**0.5, "torch": by_fan_in**0.5}
            expected = drawn.get(init, 0.01)
            assert layer.weight.std().item() == pytest.approx(expected, rel=0.15)
            assert layer.bias is not None
            assert bool(layer.bias.any()) == (init in ("normal", "torch"))

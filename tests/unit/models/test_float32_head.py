"""Outputs of numbers and labels are not rounded to bfloat16, whatever the network."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.models import ResNet18, timm, torchvision
from lockstep.models.classifier import ImageFormat
from lockstep.models.float32_head import widen_head
from lockstep.tasks import Multilabel, Regression, Task
from tests.support.modules import classifier

OF_LIBRARY: dict[str, Any] = {
    "pretrained": False, "head_only": False, "frozen_norms": False, "dropout": None, "drop_path": None,
}  # fmt: skip
OF_RESNET: dict[str, Any] = {
    "width": 4, "stem": "small", "shortcut_norm": True, "bias": False, "dropout": 0.0, "init": "torch",
}  # fmt: skip
FORMAT = ImageFormat(("a", "b"), (3, 64, 64), (0.5,) * 3, (0.25,) * 3)
LAST_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: ResNet18(in_channels=3, num_classes=2, **OF_RESNET),
    "torchvision linear": lambda: torchvision(3, 2, name="mobilenet_v3_small", **OF_LIBRARY),
    "torchvision convolution": lambda: torchvision(3, 2, name="squeezenet1_1", **OF_LIBRARY),
    "timm": lambda: timm(3, 2, name="test_resnet", **OF_LIBRARY),
    "custom": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)),
}


class Functional(nn.Module):
    """Has no last layer with two outputs; `unused` is after it."""

    def __init__(self, unused: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.weight = nn.Parameter(torch.randn(8, 2))
        self.unused = unused

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3)) @ self.weight


def dtypes(net: nn.Module, task: Task) -> tuple[Tensor, set[torch.dtype]]:
    """Outputs for images, and dtypes of what the first convolution returns."""
    found: set[torch.dtype] = set()
    first = next(layer for layer in net.modules() if isinstance(layer, nn.Conv2d))
    first.register_forward_hook(lambda layer, inputs, output: found.add(output.dtype))
    module = classifier(net, task, image_format=FORMAT, autocast=torch.bfloat16).eval()
    images = torch.randint(0, 256, (24, *FORMAT.image_shape), dtype=torch.uint8)
    with torch.no_grad():
        module(images)
        found.clear()
        return module(images), found


def is_rounded(outputs: Tensor) -> bool:
    return torch.equal(outputs, outputs.bfloat16().float())


def regression() -> Task:
    return Regression(loss=nn.MSELoss(reduction="none"))


@pytest.mark.parametrize("name", LAST_LAYERS)
def test_last_layer_float32(name: str) -> None:
    torch.manual_seed(0)
    net = LAST_LAYERS[name]()
    names = list(net.state_dict())
    widen_head(net, 2)
    outputs, inside = dtypes(copy.deepcopy(net), regression())
    assert outputs.dtype == torch.float32
    assert not is_rounded(outputs)
    assert inside == {torch.bfloat16}
    assert list(net.state_dict()) == names


@pytest.mark.parametrize("unused", [nn.Identity(), nn.Linear(3, 2)], ids=["unknown", "mistaken"])
def test_last_layer_unknown_all_float32(unused: nn.Module) -> None:
    torch.manual_seed(0)
    net = Functional(unused)
    widen_head(net, 2)
    outputs, inside = dtypes(net, Multilabel(loss=nn.BCEWithLogitsLoss(reduction="none")))
    assert not is_rounded(outputs)
    assert inside == {torch.float32}


def test_classification_autocast_unchanged() -> None:
    torch.manual_seed(0)
    outputs, inside = dtypes(LAST_LAYERS["resnet18"](), classifier(nn.Identity()).task)
    assert is_rounded(outputs)
    assert inside == {torch.bfloat16}

"""Outputs of numbers and labels are not rounded to bfloat16."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.models import ResNet18, timm, torchvision
from lockstep.models.classifier import ImageFormat
from lockstep.models.float32_head import widen_head
from lockstep.tasks import Regression, Task
from tests.support.modules import classifier

OF_LIBRARY: dict[str, Any] = {
    "pretrained": False, "head_only": False, "frozen_norms": False,
    "dropout": None, "drop_path": None,
}  # fmt: skip
OF_RESNET: dict[str, Any] = {
    "width": 4, "stem": "small", "shortcut_norm": True,
    "bias": False, "dropout": 0.0, "init": "torch",
}  # fmt: skip
FORMAT = ImageFormat(("a", "b"), (3, 64, 64), (0.5,) * 3, (0.25,) * 3)
LAST_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: ResNet18(in_channels=3, num_classes=2, **OF_RESNET),
    "torchvision convolution": lambda: torchvision(3, 2, name="squeezenet1_1", **OF_LIBRARY),
    "timm": lambda: timm(3, 2, name="test_resnet", **OF_LIBRARY),
    "custom": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    ),
}


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


@pytest.mark.parametrize("name", LAST_LAYERS)
def test_last_layer_float32(name: str) -> None:
    torch.manual_seed(0)
    net = LAST_LAYERS[name]()
    names = list(net.state_dict())
    widen_head(net, 2)
    regression = Regression(loss=nn.MSELoss(reduction="none"))
    outputs, inside = dtypes(copy.deepcopy(net), regression)
    assert outputs.dtype == torch.float32
    assert not is_rounded(outputs)
    assert inside == {torch.bfloat16}
    assert list(net.state_dict()) == names


def test_classification_autocast_unchanged() -> None:
    torch.manual_seed(0)
    outputs, inside = dtypes(LAST_LAYERS["resnet18"](), classifier(nn.Identity()).task)
    assert is_rounded(outputs)
    assert inside == {torch.bfloat16}

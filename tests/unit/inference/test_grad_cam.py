"""Grad-CAM against a derivative by hand, on the networks of three libraries, and its refusal of others."""

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models

from lockstep.config.errors import ConfigError
from lockstep.inference import grad_cam
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.models.resnet import ResNet18
from tests.support import modules


def module_of(net: nn.Module, *, size: int = 64, classes: int = 5) -> Classifier:
    names = tuple(f"class {number}" for number in range(classes))
    image_format = ImageFormat(names, (3, size, size), (0.5,) * 3, (0.25,) * 3)
    return modules.classifier(net, modules.classification(), image_format=image_format).eval()


def pixels(count: int, size: int = 64) -> Tensor:
    return torch.randint(0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


class Small(nn.Module):
    """Convolution, ReLU in place, second convolution, ReLU, mean and two linear layers, whose gradients differ."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 3, stride=2)
        self.two = nn.Conv2d(4, 6, 3)
        self.act = nn.ReLU(inplace=True)  # used twice
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(6 * 5 * 5, 8), nn.Tanh(), nn.Linear(8, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.two(self.act(self.one(x)))))


@pytest.mark.parametrize("is_frozen", [False, True])
def test_heat_is_the_derivative_by_hand(is_frozen: bool) -> None:
    torch.manual_seed(0)
    module = module_of(Small(), size=16)
    net: Any = copy.deepcopy(module.net)
    images, classes = pixels(3, 16), torch.tensor([4, 0, 2])
    module.net.requires_grad_(not is_frozen)
    layer = grad_cam.last_maps(module)
    assert layer is module.net.act
    heat = grad_cam.heat_maps(module, layer, images, classes)

    inputs = (images.float() - module.mean) / module.std
    maps = F.relu(F.conv2d(F.relu(F.conv2d(inputs, net.one.weight, net.one.bias, 2)), net.two.weight, net.two.bias))
    for number, label in enumerate(classes.tolist()):
        flat = maps[number].detach().flatten()
        hidden = torch.tanh(net.head[1].weight @ flat + net.head[1].bias)
        gradient = (net.head[3].weight[label] * (1 - hidden**2)) @ net.head[1].weight  # of the logit, by the maps
        weights = gradient.view(6, 25).mean(1)  # equation 1
        expected = F.relu((weights[:, None, None] * maps[number].detach()).sum(0))  # equation 2
        expected = F.interpolate(expected[None, None], (16, 16), mode="bilinear")[0, 0]
        assert torch.allclose(heat[number], expected / expected.max(), atol=1e-5)
    assert all(parameter.grad is None for parameter in module.net.parameters())


SMALL: dict[str, Any] = {"in_channels": 3, "num_classes": 5, "width": 4, "dropout": 0.1}
CONVOLUTIONAL: dict[str, Callable[[], nn.Module]] = {
    "own": lambda: ResNet18(**SMALL, stem="small", shortcut_norm=True, bias=False, init="normal"),
    "torchvision": lambda: models.resnet18(num_classes=5),
    "in place": lambda: models.densenet121(num_classes=5),
    "timm": lambda: timm.create_model("resnet18", num_classes=5),
    "norm last": lambda: timm.create_model("convnext_atto", num_classes=5),
    "gates": lambda: timm.create_model("efficientnet_b0", num_classes=5),
}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "torchvision": lambda: models.VisionTransformer(64, 16, 1, 2, 16, 32, num_classes=5),
    "timm": lambda: timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=64),
    "channels last": lambda: timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, img_size=64),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 5)),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_a_convolutional_network_of_any_library_is_explained(name: str) -> None:
    torch.manual_seed(0)
    module, images, classes = module_of(CONVOLUTIONAL[name]()), pixels(1).expand(5, -1, -1, -1), torch.arange(5)
    layer = grad_cam.last_maps(module)
    heat = grad_cam.heat_maps(module, layer, images, classes)
    assert heat.shape == (5, 64, 64)
    assert heat.min() >= 0
    assert sorted({*heat.amax((1, 2)).round(decimals=5).tolist()})[-1] == 1  # 0 where nothing speaks for a class
    alone = grad_cam.heat_maps(module, layer, images[3:4], classes[3:4])
    assert torch.allclose(alone[0], heat[3], atol=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("name", OTHERS)
def test_a_network_that_does_not_end_with_maps_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be explained: Grad-CAM needs a classification by a network that"):
        grad_cam.last_maps(module_of(OTHERS[name]()))


def test_a_picture_shows_the_image_in_grey_where_there_is_no_heat_and_never_leaves_its_folder(tmp_path: Path) -> None:
    images, heat = pixels(2, 16), torch.zeros(2, 16, 16)
    heat[1, 0, 0] = 1
    grad_cam.write(tmp_path / "new", ["a/0.jpg", "1.png"], images, heat)
    assert sorted(path.name for path in (tmp_path / "new").rglob("*.png")) == ["0.jpg.png", "1.png.png"]
    grey = np.asarray(Image.open(tmp_path / "new" / "a" / "0.jpg.png")).astype(int)
    assert grey.shape == (224, 224, 3)
    assert np.abs(grey[::14, ::14] - images[0].float().mean(0).numpy()[..., None]).max() <= 0.51
    coloured = np.asarray(Image.open(tmp_path / "new" / "1.png.png")).astype(int)
    assert [np.ptp(coloured[0, 0]) > 50, np.ptp(coloured[-1, -1])] == [True, 0]
    with pytest.raises(ConfigError, match=r"\.\./b\.png is not below data\.root"):
        grad_cam.write(tmp_path / "new", ["../b.png"], images[:1], heat[:1])


def test_threads_that_share_a_network_find_the_heat_that_one_alone_finds() -> None:
    torch.manual_seed(0)
    module, images, classes = module_of(Small(), size=16), pixels(40, 16), torch.arange(40) % 5
    layer = grad_cam.last_maps(module)
    parts = [*zip(images.split(1), classes.split(1), strict=True)]
    alone = [grad_cam.heat_maps(module, layer, *part) for part in parts]
    is_inside, is_done, forward = threading.Barrier(4), threading.Barrier(4), module.net.forward

    def forward_at_once(inputs: Tensor) -> Tensor:
        is_inside.wait(60)
        outputs = forward(inputs)
        is_done.wait(60)
        return outputs

    module.net.forward = forward_at_once
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(lambda part: grad_cam.heat_maps(module, layer, *part), parts)]
    assert all(torch.equal(one, other) for one, other in zip(found, alone, strict=True))

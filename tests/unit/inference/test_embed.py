"""Features equal those of networks without their last layer, and are stored as an array.

Any number of threads gives the same bits.
"""

import csv
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision import models

from lockstep.config.errors import ConfigError
from lockstep.inference import embed
from lockstep.models.classifier import Classifier, ImageFormat
from lockstep.models.resnet import ResNet18
from tests.support import modules

CLASSES = 5
SMALL: dict[str, Any] = {"in_channels": 3, "num_classes": CLASSES, "width": 4, "dropout": 0.1}
SMALL |= {"stem": "small", "shortcut_norm": True, "bias": False, "init": "normal"}


def module_of(net: nn.Module, size: int = 64) -> Classifier:
    names = tuple(f"class {number}" for number in range(CLASSES))
    image_format = ImageFormat(names, (3, size, size), (0.5,) * 3, (0.25,) * 3)
    return modules.classifier(net, modules.classification(), image_format=image_format).eval()


def pixels(count: int, size: int = 64) -> Tensor:
    return torch.randint(
        0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(0)
    ).to(torch.uint8)


class OfTokens(nn.Module):
    """Classifies each of 16 tokens, and averages."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 7, 16, stride=16)
        self.out = nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cut(x).flatten(2).transpose(1, 2)).mean(1)


class Pairs(OfTokens):
    """Calls its last layer with half as many rows as images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[::2]).repeat(2, 1)


class Functional(OfTokens):
    """Uses the weights of its last layer without calling it."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.cut(x).mean((2, 3)), self.out.weight)


def without(name: str, net: Any) -> nn.Module:
    net.set_submodule(name, nn.Identity())
    return net


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Callable[[Tensor], Tensor]]]] = {
    "ours": (partial(ResNet18, **SMALL), partial(without, "fc")),
    "torchvision": (partial(models.resnet18, num_classes=CLASSES), partial(without, "fc")),
    "efficientnet": (
        partial(models.efficientnet_b0, num_classes=CLASSES),
        partial(without, "classifier"),
    ),
    "maps": (
        partial(models.squeezenet1_1, num_classes=CLASSES),
        lambda net: lambda images: net.features(images).mean((2, 3)),
    ),
    "timm": (
        partial(timm.create_model, "test_vit", num_classes=CLASSES, img_size=64),
        partial(without, "head"),
    ),
    "tokens": (OfTokens, lambda net: lambda images: net.cut(images).mean((2, 3))),
}


@pytest.mark.parametrize(("make", "cut_off"), NETWORKS.values(), ids=NETWORKS)
def test_features_before_last_layer(
    make: Callable[[], nn.Module], cut_off: Callable[[Any], Callable[[Tensor], Tensor]]
) -> None:
    torch.manual_seed(0)
    module = module_of(make())
    found = embed.features(module, pixels(3))
    assert module(pixels(3)).shape == (3, CLASSES)  # no trace of the first call
    with torch.no_grad():
        expected = cut_off(module.net)((pixels(3).float() - module.mean) / module.std)
    torch.testing.assert_close(found, expected)


def test_features_concurrent_threads() -> None:
    net = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 5))
    module, images, is_inside = module_of(net), pixels(40), threading.Barrier(4)
    alone = [embed.features(module, image) for image in images.split(1)]
    forward = module.net.forward

    def forward_at_once(inputs: Tensor) -> Tensor:
        is_inside.wait(60)
        return forward(inputs)

    module.net.forward = forward_at_once
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(lambda image: embed.features(module, image), images.split(1))]
    assert all(torch.equal(one, other) for one, other in zip(found, alone, strict=True))


@pytest.mark.parametrize(
    ("net", "text"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(48, 6)),
            "Sequential has no last layer of 5 outputs: name it as the",
        ),
        (Pairs(), "Pairs does not call its layer out with features of each image"),
        (Functional(), "Functional does not call its layer out with features of each image"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unusable_network_refused(net: nn.Module, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(text)}"):
        embed.features(module_of(net), pixels(4))


def chunks(values: np.ndarray[Any, Any]) -> Iterator[str]:
    yield ""  # of unreadable images
    for at in range(0, len(values), 4):
        rows = enumerate(values[at : at + 4], at)
        yield "".join(f"{number + 3},{row.tobytes().hex()}\n" for number, row in rows)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 9, 1200])
def test_array_and_names_written(tmp_path: Path, dtype: str, count: int) -> None:
    values = np.random.default_rng(0).normal(size=(count, 7)).astype(dtype)
    values[0, :3] = np.nan, -0.0, np.inf
    odd = [
        "=a",
        'b,"c\nd',
        "'e",
        os.fsdecode(b"caf\xe9"),
        *(f"{number}.png" for number in range(count + 10)),
    ]
    output = tmp_path / "features.npy"
    embed.write_array(output, odd, dtype, chunks(values))
    found = np.load(output, mmap_mode="r")
    assert (found.dtype, found.shape, found.tobytes()) == (
        values.dtype,
        values.shape,
        values.tobytes(),
    )
    with open(f"{output}.csv", newline="", errors="surrogateescape") as file:
        assert list(csv.reader(file)) == [["file"], *([name] for name in odd[3 : count + 3])]


def test_failure_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield from chunks(np.zeros((9, 3), np.float32))
        raise ConnectionError

    with pytest.raises(ConnectionError):
        embed.write_array(tmp_path / "features.npy", ["a"] * 20, "float32", broken())
    assert list(tmp_path.iterdir()) == []

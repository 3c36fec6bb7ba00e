"""The preprocessing of an image is that of torchvision's v2 transforms.

Its scaled sizes are those of torchvision and timm.
"""

import math
from typing import Any, Literal

import pytest
import torch
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from lockstep.data.images.preprocessing import Preprocessing, resize

SIZES = [(20, 30), (60, 31), (8, 9), (40, 40), (3, 90)]  # wide, tall, small, square, long
MODES: dict[str, Any] = {
    "bilinear": InterpolationMode.BILINEAR,
    "bicubic": InterpolationMode.BICUBIC,
}


def image_of(height: int, width: int, channels: int = 3) -> torch.Tensor:
    source = torch.Generator().manual_seed(height * width)
    return torch.randint(0, 256, (channels, height, width), dtype=torch.uint8, generator=source)


def preprocessing_of(size: tuple[int, int], **changes: Any) -> Preprocessing:
    return Preprocessing(
        **{
            "size": size,
            "crop_percent": 1.0,
            "fit": "crop",
            "interpolation": "bilinear",
            "background": "white",
        }
        | changes
    )


def assert_close(pixels: torch.Tensor, expected: torch.Tensor) -> None:
    assert pixels.shape == expected.shape
    assert (pixels.int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize("capability", ["AVX2", "DEFAULT"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_square_as_torchvision(
    monkeypatch: pytest.MonkeyPatch,
    capability: str,
    interpolation: Literal["bilinear", "bicubic"],
    height: int,
    width: int,
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    image = image_of(height, width)
    for short in (16, 19):
        usual = v2.Compose(
            [v2.Resize(short, MODES[interpolation], antialias=True), v2.CenterCrop(16)]
        )
        assert_close(
            preprocessing_of((16, 16), crop_percent=16 / short, interpolation=interpolation)(image),
            usual(image),
        )


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("size", [(16, 24), (24, 10)])
def test_rectangle_as_torchvision(height: int, width: int, size: tuple[int, int]) -> None:
    image, ratio = image_of(height, width), max(size[0] / height, size[1] / width)
    for percent in (1.0, 0.8):
        bounds = [math.floor(side / percent) for side in size]
        ratio = max(bounds[0] / height, bounds[1] / width)
        scaled = [math.floor(height * ratio + 1e-9), math.floor(width * ratio + 1e-9)]
        usual = v2.Compose([v2.Resize(scaled, antialias=True), v2.CenterCrop(size)])
        assert_close(preprocessing_of(size, crop_percent=percent)(image), usual(image))


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("size", [(16, 16), (16, 24)])
@pytest.mark.parametrize("channels", [1, 3])
def test_letterbox_as_torchvision(
    height: int, width: int, size: tuple[int, int], channels: int
) -> None:
    image, ratio = image_of(height, width, channels), min(size[0] / height, size[1] / width)
    scaled = [max(1, round(height * ratio)), max(1, round(width * ratio))]
    down, right = size[0] - scaled[0], size[1] - scaled[1]
    border = [right // 2, down // 2, right - right // 2, down - down // 2]
    usual = v2.Compose([v2.Resize(scaled, antialias=True), v2.Pad(border, fill=128)])
    assert_close(preprocessing_of(size, fit="letterbox", background="gray")(image), usual(image))


@pytest.mark.parametrize(
    ("side", "percent", "scaled"),
    [
        # resize and crop of torchvision's weights
        (224, 224 / 232, 232),
        (224, 224 / 256, 256),
        (299, 299 / 342, 342),
        (300, 300 / 320, 320),
        (380, 380 / 384, 384),
        (224, 224 / 238, 238),
        (224, 224 / 246, 246),
        # image size and crop_pct of timm's, which rounds down
        (224, 0.875, 256),
        (224, 0.904, 247),
        (224, 0.922, 242),
        (224, 1.0, 224),
        (380, 0.875, 434),
        (380, 0.904, 420),
        (380, 0.922, 412),
        (380, 1.0, 380),
    ],
)
def test_crop_percent_of_libraries(side: int, percent: float, scaled: int) -> None:
    assert preprocessing_of((side, side), crop_percent=percent).bounds == (scaled, scaled)


@pytest.mark.parametrize("capability", ["AVX2", "DEFAULT"])
@pytest.mark.parametrize("shape", [(3, 20, 30), (1, 8, 8), (2, 3, 16, 12)])
@pytest.mark.parametrize("size", [[10, 15], [24, 9], [8, 8]])
def test_resize_bits(
    monkeypatch: pytest.MonkeyPatch, capability: str, shape: tuple[int, ...], size: list[int]
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    for given in (images, (images * 255).to(torch.uint8)):
        assert torch.equal(resize(given, size), F.resize(given, size, antialias=True))

"""Every input of a predictor reaches the network as a file of it does.

Anything else is rejected in one line.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from lockstep.data.images.decoded_image import decode
from lockstep.data.images.preprocessing import Preprocessing
from lockstep.models.classifier import ImageFormat
from lockstep.python import images as python_images
from lockstep.python.images import Inputs
from tests.support.image_files import write_image

COLOR = ImageFormat(("a", "b"), (3, 6, 8), (0.5,) * 3, (0.25,) * 3)
GRAY = ImageFormat(("a", "b"), (1, 6, 8), (0.5,), (0.25,))
FLOATS = COLOR._replace(is_float=True)
PREPROCESSING = Preprocessing.from_keys([6, 8], "auto", "crop", "auto", "white")


def inputs_of(given: Any, wanted: ImageFormat, background: str = "white") -> Inputs:
    return python_images.inputs_of(given, wanted, replace(PREPROCESSING, background=background))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_image(tmp_path / "image.png", height=10, width=12)


@pytest.mark.parametrize("orientation", [1, 6])  # 6: to be turned by 90 degrees
@pytest.mark.parametrize("wanted", [COLOR, GRAY], ids=["color", "gray"])
def test_file_pixels(path: Path, tmp_path: Path, wanted: ImageFormat, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.open(path).save(tmp_path / "turned.png", exif=exif)
    name = str(tmp_path / "turned.png")
    expected = PREPROCESSING(decode(name, wanted.image_shape[0], PREPROCESSING).pixels).unsqueeze(0)
    image = Image.open(name)
    for given in (Path(name), name, image, np.asarray(ImageOps.exif_transpose(image))):
        found = inputs_of(given, wanted)
        assert torch.equal(found.images, expected)
        assert (found.is_one, list(found.files)) == (
            True,
            [name if isinstance(given, str | Path) else None],
        )


def test_transparent_image_composited(tmp_path: Path) -> None:
    image = Image.new("RGBA", (8, 6), (90, 90, 90, 0))
    image.putpixel((0, 0), (1, 2, 3, 255))
    image.save(tmp_path / "a.png")
    converted = [image.convert(mode) for mode in ("PA", "RGBa")]
    for given in (
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        tmp_path,
        image,
        np.asarray(image),
        *converted,
    ):
        pixels = inputs_of(given, COLOR, "black").images[0]
        assert pixels[:, 0, 0].tolist() == [1, 2, 3]
        assert pixels[:, 1:].unique().tolist() == [0]


def test_folder_sorted(tmp_path: Path) -> None:
    for number, name in enumerate(("b.png", "a.png")):
        write_image(tmp_path / "images" / name, seed=number)
    found = inputs_of(tmp_path / "images", COLOR)
    assert [Path(str(file)).name for file in found.files] == ["a.png", "b.png"]
    (tmp_path / "images" / "b.png").unlink()
    assert not inputs_of(tmp_path / "images", COLOR).is_one


def test_tensor_inputs() -> None:
    images = torch.randint(0, 256, (4, 3, 6, 8), dtype=torch.uint8)
    assert torch.equal(inputs_of(images[0], COLOR).images, images[:1])
    assert (inputs_of(images, COLOR).is_one, inputs_of(images[0], COLOR).is_one) == (False, True)
    large = torch.randint(0, 256, (3, 12, 20), dtype=torch.uint8)
    assert torch.equal(inputs_of(large, COLOR).images[0], PREPROCESSING(large))
    floats = 5 * torch.randn(4, 3, 6, 8, dtype=torch.float64)
    assert torch.equal(inputs_of(floats, FLOATS).images, floats)
    values = torch.arange(4 * 3 * 6 * 8).view(4, 3, 6, 8).to(torch.uint8)  # all 256
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert torch.equal(inputs_of(values.to(dtype) / 255, COLOR).images, values)


def tensor(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("given", "wanted", "text"),
    [
        (tensor(6, 8), COLOR, "A tensor of uint8 of shape (6, 8) is not an image: give a path"),
        (
            tensor(3, 6, 8, dtype=torch.int64),
            COLOR,
            "A tensor of int64 of shape (3, 6, 8) is not an image",
        ),
        (
            tensor(6, 8, 3),
            COLOR,
            "of shape (6, 8, 3) does not fit the network, which takes (3, H, W)",
        ),
        (
            tensor(3, 6, 8, dtype=torch.float32) - 0.5,
            COLOR,
            "has values from -0.5 to -0.5: give uint8",
        ),
        (tensor(3, 6, 8, dtype=torch.float32) * float("nan"), COLOR, "has values from nan to nan"),
        (
            tensor(3, 7, 8, dtype=torch.float32),
            FLOATS,
            "the network, which takes floats of shape (3, 6, 8) here",
        ),
        (
            np.zeros((6, 8), np.float32),
            COLOR,
            "An array of float32 of shape (6, 8) is not an image: give a path",
        ),
        (
            np.zeros((2, 6, 8, 3), np.uint8),
            COLOR,
            "An array of uint8 of shape (2, 6, 8, 3) is not an image",
        ),
        (
            Image.new("F", (8, 6)),
            COLOR,
            "This image cannot be used (32-bit pixels (mode F)): give another",
        ),
        (3, COLOR, "An object of type int is not an image: give a path"),
    ],
    ids=lambda value: "" if not isinstance(value, str) else re.sub(r"\W+", " ", value)[:40],
)
def test_non_image_rejected(given: Any, wanted: ImageFormat, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        inputs_of(given, wanted)


def test_missing_and_broken_files_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"nowhere\.png does not exist \(from .*\): give a path"
    ):
        inputs_of(tmp_path / "nowhere.png", COLOR)
    (tmp_path / "text.png").write_text("no image")
    write_image(tmp_path / "image.png")
    assert [*inputs_of(tmp_path, COLOR).errors] == [str(tmp_path / "text.png")]

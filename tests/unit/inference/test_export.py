"""An exported file preprocesses and predicts images of any size as its network does.

A network whose file does not is refused.
"""

import io
import random
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

from lockstep.data.images.preprocessing import Preprocessing
from lockstep.inference import export
from lockstep.inference.export import Exported

PREPROCESSINGS = (
    Preprocessing((24, 24), 0.875, "crop", "bilinear", "white"),
    Preprocessing((24, 16), 1.0, "letterbox", "bicubic", "gray"),
)
AXES = {0: "batch", 2: "height", 3: "width"}


class Branch(nn.Module):
    """A network with one line of code in a block of torch.no_grad.

    The block becomes a program of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            secret_scale = images.abs().mean(dim=(1, 2, 3), keepdim=True).add(1).sqrt()
        return self.layer(images * secret_scale)


class Means(nn.Module):
    """A task, with a number for each channel."""

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.mean((2, 3))


def trained(preprocessing: Preprocessing) -> Any:
    """What an export reads of a Classifier."""
    torch.manual_seed(0)
    mean, std = (
        torch.tensor(values).view(1, 3, 1, 1)
        for values in ((110.0, 120.0, 130.0), (50.0, 60.0, 70.0))
    )
    form = SimpleNamespace(image_shape=(3, *(preprocessing.size or ())), is_float=False)
    parts = {"net": nn.Conv2d(3, 4, 3), "task": Means(), "calibration": nn.Identity()}
    return SimpleNamespace(**parts, mean=mean, std=std, image_format=form)


def predictions(module: Any, pixels: Tensor) -> Tensor:
    return module.net((pixels - module.mean) / module.std).mean((2, 3))


def images(sizes: int) -> list[Tensor]:
    draw, torch_draw = random.Random(0), torch.Generator().manual_seed(0)
    shapes = [
        (draw.randint(1, 3), 3, draw.randint(20, 200), draw.randint(20, 200)) for _ in range(sizes)
    ]
    return [
        torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch_draw) for shape in shapes
    ]


@pytest.mark.parametrize(
    "size", [(256, 256), (200, 200), (100, 100), (37, 37), (200, 100), (37, 256)]
)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_pixels_scaled_as_pillow(interpolation: Any, size: tuple[int, int]) -> None:
    photo, method = (
        load_sample_image("china.jpg")[:150, :150],
        Image.Resampling[interpolation.upper()],
    )
    pixels = torch.from_numpy(photo.copy()).permute(2, 0, 1)[None]
    exported = Exported(
        trained(PREPROCESSINGS[0]), Preprocessing(size, 1.0, "crop", interpolation, "white")
    )
    # width first
    stretched = (
        Image.fromarray(photo).resize((size[1], 150), method).resize((size[1], size[0]), method)
    )
    expected = torch.from_numpy(np.array(stretched)).permute(2, 0, 1)[None]
    difference = (exported._scale(pixels.float(), size) - expected).abs()
    assert difference.max() <= 1
    assert (difference > 0).float().mean() <= 0.0015


@pytest.mark.full
@pytest.mark.parametrize(
    "preprocessing",
    PREPROCESSINGS,
    ids=lambda preprocessing: f"{preprocessing.fit}-{preprocessing.interpolation}",
)
def test_export_any_image_size(preprocessing: Preprocessing) -> None:
    module = trained(preprocessing)
    with torch.no_grad():
        program = export._program(Exported(module, preprocessing).eval(), module.image_format, AXES)
        running = [make(program, AXES, "{}")[1] for make in (export._onnx, export._pt2)]
        for batch in images(30):
            viewed = Exported(module, preprocessing)._apply_preprocessing(batch.float())
            assert (viewed - preprocessing(batch)).abs().mean() <= 0.1, batch.shape
            for run in running:
                assert (run(batch) - predictions(module, viewed)).abs().max() <= 1e-4, batch.shape


@pytest.mark.parametrize("wrong", [1e-3, float("nan")])
def test_differing_outputs_detected(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    module, preprocessing, batch = trained(PREPROCESSINGS[0]), PREPROCESSINGS[0], images(1)[0][:1]
    monkeypatch.setattr(export.predict, "predictions", predictions)
    network = Exported(module, preprocessing)
    with torch.no_grad():
        before, inside = export._differences(module, network, network, 1, batch)
        assert before <= 1e-6
        assert 1e-6 < inside <= 1e-2
        before, _ = export._differences(
            module, network, lambda images: network(images) + wrong, 1, batch
        )
        assert not before <= export.LIMIT


@pytest.mark.full
def test_export_without_source_paths() -> None:
    module = trained(PREPROCESSINGS[0])
    module.net = Branch()  # in training, as torch.no_grad of an export would remove the block
    program = export._program(Exported(module, PREPROCESSINGS[0]).eval(), module.image_format, AXES)
    content, _ = export._pt2(program, AXES, "{}")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        content += b"".join(map(archive.read, archive.namelist()))
    content += export._onnx(program, AXES, "{}")[0]
    inside = (
        f"{Path(__file__).parents[3]}/",
        f"{Path.home()}/",
        "site-packages",
        "secret_scale",
        "images.float()",
    )
    assert not [text for text in inside if text.encode() in content]


def test_wrong_class_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    module, preprocessing = trained(PREPROCESSINGS[0]), PREPROCESSINGS[0]
    monkeypatch.setattr(export.predict, "predictions", predictions)
    exported, batch = Exported(module, preprocessing, 0.5).eval(), images(1)[0][:1]

    def wrong(images: Tensor) -> tuple[Tensor, Tensor]:
        values, answer = exported(images)
        return values, answer + 1

    with torch.no_grad():
        assert export._differences(module, exported, exported, 1, batch)[0] <= export.LIMIT
        assert export._differences(module, exported, wrong, 1, batch).tolist() == [1, 1]

"""Photographs, from a folder to predictions: docs/images.md is typed.

They get the preprocessing of pretrained weights.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor, nn
from torchvision import models

import lockstep
from lockstep.models import libraries
from lockstep.runs.folder import RunFolder
from tests.support import commands
from tests.support.harness import SMALL

pytestmark = [pytest.mark.full, pytest.mark.processes]


def weights_of(name: str) -> Any:
    found: Any = models.get_model_weights(name)
    return found.DEFAULT


def library_of(home: Path, name: str) -> None:
    """Write random weights into the cache of torchvision, because a test downloads nothing."""
    path = home / "hub" / "checkpoints" / Path(weights_of(name).url).name
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    net = models.get_model(name)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None
    parts = [
        torch.tensor(load_sample_image(f"{name}.jpg")[20:404, 20:596])
        for name in ("china", "flower")
    ]
    tiles = torch.cat([part.unfold(0, 128, 64).unfold(1, 128, 64).flatten(0, 1) for part in parts])
    with torch.no_grad():
        net(tiles / 64 - 2)  # statistics of photographs, so that an image makes a difference
    torch.save(net.state_dict(), path)


NAME = "efficientnet_b0"  # resized to 256, bicubic, cropped to 224
OPTIONS = (
    *(
        "data=image_folder",
        "data.root=photos",
        "data.image_size=224",
        "data.cache=null",
        "model=torchvision",
    ),
    *(
        f"model.name={NAME}",
        "model.pretrained=true",
        "optimizer.lr=1e-4",
        "trainer.limit_train_batches=1",
    ),
    *(
        "trainer.max_epochs=1",
        "global_batch_size=2",
        "eval_batch_size=4",
        *SMALL[-4:],
        "trainer.precision=float32",
    ),
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs of two classes, and a run that has seen two of them."""
    folder = tmp_path_factory.mktemp("project")
    draw = np.random.default_rng(0)
    for name in ("china", "flower"):
        picture = Image.fromarray(load_sample_image(f"{name}.jpg"))
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(6):
            width, height = draw.integers(260, 400, 2).tolist()
            picture.crop((10, 10, 10 + width, 10 + height)).save(
                folder / "photos" / name / f"{number}.png"
            )
    library_of(folder / "home", NAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_HOME", str(folder / "home"))
        done = commands.lockstep(folder, "train", *OPTIONS)
    assert "at 224x224: short side 256, center crop, bicubic\n" in done.stdout, done.stderr
    return folder


def reference(run: RunFolder, inputs: Tensor) -> Tensor:
    """The probabilities of torchvision's own network with the weights of a run."""
    state = torch.load(run.best_checkpoint, weights_only=True)["state_dict"]
    net = models.get_model(NAME, num_classes=2).eval()
    net.load_state_dict(
        {key.removeprefix("net."): value for key, value in state.items() if key.startswith("net.")}
    )
    with torch.inference_mode():
        return net(inputs).double().softmax(1)


def test_view_of_pretrained_weights(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder((project / "outputs" / "latest").resolve())
    monkeypatch.setattr(libraries, "pretrained_preprocessing", None)
    monkeypatch.chdir(project)
    paths = sorted((project / "photos").rglob("*.png"))
    transforms = weights_of(NAME).transforms()
    images = [torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) for path in paths]
    inputs = torch.stack([transforms(image) for image in images])
    expected = reference(run, inputs)

    # what one gray level changes, in each value of each pixel, at random: 0.9 to 1.9e-4 in eight
    # draws
    level = (1 / 255 / torch.tensor(transforms.std)).view(3, 1, 1)
    draws = [torch.Generator().manual_seed(seed) for seed in range(1, 9)]
    signs = [torch.rand(inputs.shape, generator=draw).sub(0.5).sign() for draw in draws]
    limit = max(
        (reference(run, inputs + level * sign) - expected).abs().max().item() for sign in signs
    )

    network = lockstep.load("latest")
    for given in (paths, images):  # other ways to give an image: test_predictor.py
        assert (network(given).values.cpu() - expected).abs().max() <= limit
    commands.output_of(project, "predict", "latest", "photos", "--output", "predictions.csv")
    rows = commands.rows_of(project / "predictions.csv")
    found = torch.tensor([float(row["probability"]) for row in rows], dtype=torch.float64)
    assert (found - expected.max(1).values).abs().max() <= limit + 1e-6

"""`lockstep embed`: the features of the network of a run."""

import csv
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import models
from torchvision.transforms import v2

from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, RunFolder
from tests.support.commands import latest, lockstep
from tests.support.image_files import write_image

pytestmark = pytest.mark.processes
NUM_PHOTOS = 45
ODD = ("0/=a.png", '1/b,"c\nd.png', os.fsdecode(b"2/caf\xe9.png"))
NETWORK = ("model.name=efficientnet_b0", "data.image_size=64")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "efficientnet.pth"
    net = models.efficientnet_b0()
    for norm in [layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)]:
        norm.momentum = None  # with the statistics of a new network its features hardly depend on the image
    with torch.no_grad():
        net.train()(torch.randn(16, 3, 64, 64))
    torch.save(net.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(NUM_PHOTOS):
        name = ODD[number] if number < len(ODD) else f"{number % 3}/{number}.png"
        write_image(folder / name, seed=number, height=60 + number, width=70)
    return folder


@pytest.fixture(scope="module")
def trained(weights: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A linear probe: all layers but the last are those of the pretrained network."""
    folder = tmp_path_factory.mktemp("probe")
    settings = (f"data.root={photos}", "data.cache=null", "trainer.max_epochs=2", "strategy=cpu")
    done = lockstep(folder, "train", "experiment=probe", *settings, *NETWORK, f"model.pretrained={weights}")
    assert done.returncode == 0, done.stdout + done.stderr
    return latest(folder)


def embed(cwd: Path, run: RunFolder, photos: Path, *more: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Type the command in `cwd`, where nothing else is."""
    done = lockstep(cwd, "embed", run.path, photos, "--output", "features.npy", "--trust", *more)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def alone(trained: RunFolder, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which one worker wrote."""
    cwd = tmp_path_factory.mktemp("alone")
    embed(cwd, trained, photos, "--devices", "1")
    return cwd


def test_features_are_those_of_the_library_without_its_last_layer(alone: Path, weights: Path, photos: Path) -> None:
    with open(alone / "features.npy.csv", newline="", errors="surrogateescape") as file:
        (head, *names) = [row[0] for row in csv.reader(file)]
    assert head == "file"
    assert names == sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    assert {*ODD} < {*names}
    net = models.efficientnet_b0()
    net.load_state_dict(torch.load(weights, weights_only=True))
    net.classifier = nn.Sequential()
    view = models.EfficientNet_B0_Weights.DEFAULT.transforms()
    covering = int(64 / (view.crop_size[0] / view.resize_size[0]) + 1e-9)
    see = v2.Compose(
        [
            v2.PILToTensor(),
            v2.Resize(covering, view.interpolation, antialias=True),
            v2.CenterCrop(64),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(view.mean, view.std),
        ]
    )
    with torch.no_grad():
        by_hand = net.eval()(torch.stack([see(Image.open(photos / name)) for name in names]))
    found = np.load(alone / "features.npy")
    assert (found.dtype, found.shape) == (np.float32, (NUM_PHOTOS, 1280))
    assert found.std(0).mean() > 0.1 * np.abs(found).mean()
    np.testing.assert_allclose(found, by_hand.numpy(), rtol=1e-4, atol=1e-5 * np.abs(found).max())


def test_an_unreadable_photo_is_left_out_and_named(
    alone: Path, trained: RunFolder, photos: Path, tmp_path: Path
) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    broken = tmp_path / "photos" / "1" / "4.png"
    broken.write_bytes(b"no image")
    line = f"image {broken} cannot be read (not an image): replace or delete it."
    assert line in embed(tmp_path, trained, tmp_path / "photos", "--strict", code=EXIT_CONFIG).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
    assert embed(tmp_path, trained, tmp_path / "photos", code=EXIT_FAILED).stderr.splitlines()[0] == line
    listed = (alone / "features.npy.csv").read_bytes().replace(b"1/4.png\n", b"")
    assert (tmp_path / "features.npy.csv").read_bytes() == listed
    found, whole = (np.load(folder / "features.npy") for folder in (tmp_path, alone))
    place = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png")).index("1/4.png")
    np.testing.assert_allclose(found, np.delete(whole, place, 0), rtol=1e-4, atol=1e-5 * np.abs(whole).max())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nowhere"], "nowhere does not exist: give a folder or file of images"),
        ([".", "init_from=run"], "init_from=run is for a training, which this command does"),
        ([".", "--output", "out.csv"], "--output out.csv is not named as an array"),
        ([".", "--output", "taken.npy"], "--output taken.npy.csv is a folder: name a file"),
    ],
)
def test_a_wrong_command_gets_one_line(trained: RunFolder, tmp_path: Path, words: list[str], text: str) -> None:
    write_image(tmp_path / "photo.png")
    (tmp_path / "taken.npy.csv").mkdir()
    done = lockstep(tmp_path, "embed", trained.path, "--output", "out.npy", "--trust", *words)
    assert (done.returncode, text in done.stderr) == (EXIT_CONFIG, True), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photo.png", "taken.npy.csv"]

"""`lockstep.load` predicts what `lockstep predict` writes for any input, and reports errors."""

import csv
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lockstep
from lockstep.data import synthetic
from lockstep.data.splits import all_pixels
from lockstep.runs.folder import RunFolder
from tests.support import commands
from tests.support.commands import run
from tests.support.harness import SMALL, command, train_all, write_run
from tests.support.image_files import write_image
from tests.support.sources import few_digits

pytestmark = [pytest.mark.full, pytest.mark.processes]
PLAIN = [text for text in SMALL if not text.startswith(("data", "trainer.precision"))]
EMPTIED = [f"~data.{key}" for key in ("val_fraction", "test_fraction", "split_seed")]
SOURCE = [*PLAIN, "data=digits", *EMPTIED]
WITHOUT_CROPS = ["augment.crop_padding=0", "augment.flip=false", "augment.cutout=0"]
# an eval_batch_size of 10 (SMALL) cuts the images into batches, of which the last is smaller
SYNTHETIC = [*PLAIN, "data=synthetic", "data.train_size=70", "data.image_size=16"]
LABELED = [
    *(*SOURCE, "trainer.precision=float32", "global_batch_size=64"),
    "data._target_=tests.support.sources.labeled",
]
FLOATS = [*SOURCE, *WITHOUT_CROPS, "~data.memory", "data._target_=tests.support.sources.few_digits"]
KINDS = {
    "color": [*SYNTHETIC, "data.channels=3", "trainer.precision=float32"],
    "float64": [*SMALL],
    "bfloat16": [*SYNTHETIC, "trainer.precision=bfloat16"],
    "floats": [*FLOATS, "+data.is_float=true", "trainer.precision=float32"],
    "labels": [*LABELED, "task=multilabel", "+data.kind=labels"],
    "numbers": [*LABELED, "task=regression", "+data.kind=number"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    root = tmp_path_factory.mktemp("predictor")
    folders = {kind: write_run(root / kind, overrides) for kind, overrides in KINDS.items()}
    train_all([*folders.values()], 1)
    return folders


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(23):
        write_image(
            folder / f"{number % 3}" / f"{number}.png", seed=number, height=9 + number, width=20
        )
    return folder


def predicted(folder: RunFolder, source: Path | str, output: Path, *more: str) -> list[list[str]]:
    """The rows that `lockstep predict` writes, each after the name of its file."""
    words = ("predict", folder.path, source, "--output", output, "--trust", *more)
    commands.output_of(output.parent, *words)
    with open(output, newline="") as file:
        return [row[1:] for row in csv.reader(file)][1:]


def rows_of(kind: str, predictions: lockstep.Predictions) -> list[list[str]]:
    """What the command would write of predictions."""
    if kind in ("labels", "numbers"):
        form = "{:.6f}" if kind == "labels" else "{:.6g}"
        return [[form.format(value) for value in one.values.tolist()] for one in predictions]
    return [[one.class_name, f"{one.probability:.6f}"] for one in predictions]


@pytest.mark.parametrize(
    ("kind", "checkpoint"), [(kind, "last" if kind == "float64" else "best") for kind in KINDS]
)
def test_predict_folder(
    trained: dict[str, RunFolder], photos: Path, tmp_path: Path, kind: str, checkpoint: Any
) -> None:
    network = lockstep.load(trained[kind].path, checkpoint=checkpoint, trust=True)
    predictions = network(photos)
    written = predicted(trained[kind], photos, tmp_path / "out.csv", "--checkpoint", checkpoint)
    assert rows_of(kind, predictions) == written
    assert [one.file for one in predictions] == [*map(str, sorted(photos.rglob("*.png")))]


@pytest.mark.parametrize("kind", ["color", "float64", "bfloat16", "floats"])
def test_features(trained: dict[str, RunFolder], photos: Path, tmp_path: Path, kind: str) -> None:
    network = lockstep.load(trained[kind].path, trust=True)
    found = network.features(photos)
    commands.output_of(
        tmp_path, "embed", trained[kind].path, photos, "--output", "out.npy", "--trust"
    )
    written = np.load(tmp_path / "out.npy")
    assert str(written.dtype) == str(found.dtype).removeprefix("torch.")
    assert found.dtype == (torch.float64 if kind == "float64" else torch.float32)
    # of the sum in another order, in batches of another size
    bound = 0.02 if kind == "bfloat16" else 1e-5
    np.testing.assert_allclose(found.numpy(), written, rtol=bound, atol=bound)


def test_broken_photos(trained: dict[str, RunFolder], photos: Path, tmp_path: Path) -> None:
    before = predicted(trained["float64"], photos, tmp_path / "all.csv")
    mixed = shutil.copytree(photos, tmp_path / "mixed")
    paths, broken = sorted(mixed.rglob("*.png")), (0, 11, 22)
    for place in broken:
        paths[place].write_bytes(b"no image")
    words = (
        "predict",
        trained["float64"].path,
        mixed,
        "--output",
        "out.csv",
        "--devices",
        "2",
        "--trust",
    )
    strict = commands.lockstep(tmp_path, *words, "--strict")
    assert (strict.returncode, strict.stdout, (tmp_path / "out.csv").exists()) == (2, "", False)
    done = commands.lockstep(tmp_path, *words)
    assert done.returncode == 1
    assert [place for place in broken if str(paths[place]) not in done.stderr] == []
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    # float64: a batch of other images ends with the same six digits
    assert [row[1:] for row in rows] == [
        before[place] for place in range(23) if place not in broken
    ]
    network = lockstep.load(trained["float64"].path)
    predictions = network(mixed)
    assert [place for place in range(23) if predictions[place].error is not None] == [*broken]
    for values in (predictions.values, network.features(mixed)):
        assert values.isnan().all(1).nonzero().flatten().tolist() == [*broken]


@pytest.mark.parametrize("kind", ["floats", "float64"])
def test_predict_tensors(trained: dict[str, RunFolder], tmp_path: Path, kind: str) -> None:
    """Floats reach a network that was trained on floats as they do in training."""
    config = lockstep.Run(trained[kind].path).config["data"]
    names = ("num_classes", "channels", "image_size", "train_size", "val_size", "test_size", "seed")
    splits = (
        few_digits(is_float=True)
        if kind == "floats"
        else synthetic(**{name: config[name] for name in names})
    )
    images = all_pixels(splits.test.pixels)
    predictions = lockstep.load(trained[kind].path, trust=True)(images)
    assert rows_of(kind, predictions) == predicted(trained[kind], "test", tmp_path / "out.csv")


def test_inputs_of_all_types(trained: dict[str, RunFolder], photos: Path) -> None:
    network = lockstep.load(trained["color"].path, trust=True)
    paths = sorted(photos.rglob("*.png"))[:5]
    by_path = network(paths)
    images = [Image.open(path) for path in paths]
    arrays = [np.array(image) for image in images]
    tensors = [torch.from_numpy(array).permute(2, 0, 1) for array in arrays]
    ways: dict[str, list[Any]] = {"PIL": [*images], "arrays": [*arrays], "uint8": [*tensors]}
    ways["floats"] = [tensor / 255 for tensor in tensors]
    ways["mixed"] = [paths[0], images[1], tensors[2], tensors[3] / 255, tensors[4][None]]
    for name, way in ways.items():
        assert torch.equal(network(way).values, by_path.values), name
    assert network([]).values.shape == (0, by_path.values.shape[1])


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("nowhere", {}, "nowhere is not a run folder"),
        ("run", {"checkpoint": "newest"}, 'choose "best" or "last"'),
        ("run", {}, r"best\.ckpt does not exist: has the run finished an epoch"),
        ("run", {"checkpoint": "last"}, r'last\.ckpt is damaged.*, or try checkpoint="best"'),
        ("trained", {"device": "gpu"}, "device type at start of device string: gpu"),
        ("trained", {"device": "cuda:1"}, 'device="cuda:1" does not exist: this machine has 1 GPU'),
        ("trained", {"device": "meta"}, 'device="meta" does not exist: this machine has 1 GPU'),
    ],
)
def test_load_refused(
    trained: dict[str, RunFolder],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    options: Any,
    error: str,
) -> None:
    folder = write_run(tmp_path / "run", SMALL)
    folder.checkpoints.mkdir()
    folder.last_checkpoint.write_text("half of it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lockstep.system.hardware.num_visible_gpus", lambda: 1)
    with pytest.raises((OSError, ValueError, RuntimeError), match=error):
        lockstep.load(trained["color"].path if name == "trained" else name, **options)


NETWORK = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, in_channels, num_classes):
        super().__init__()
        self.fc = nn.Linear(in_channels, num_classes)

    def forward(self, images):
        return FACTOR * self.fc(images.mean((2, 3)))
"""
TINY = [
    *("data=synthetic", "data.train_size=40", "data.val_size=20", "data.test_size=20"),
    *("trainer.max_epochs=1", "strategy=cpu"),
]
OWN = [
    "model._target_=mine.Net",
    *(f"~model.{key}" for key in ("width", "stem", "shortcut_norm", "bias", "dropout")),
]


def test_custom_networks_of_equal_name(tmp_path: Path) -> None:
    for factor in (1, 2):
        project = tmp_path / f"project {factor}"
        project.mkdir()
        (project / "mine.py").write_text(f"FACTOR = {factor}\n{NETWORK}")
        done = run(command(*TINY, *OWN, "~model.init", "callbacks.pictures=null"), project)
        assert done.returncode == 0, done.stderr
    text = f"""
import json, sys, torch, lockstep
before = list(sys.path)
one, other = ({str(tmp_path)!r} + f"/project {{factor}}/outputs/latest" for factor in (1, 2))
name = lockstep.load(one, trust=True)(torch.zeros(1, 32, 32)).class_name
try:
    lockstep.load(other, trust=True)
except lockstep.ConfigError as error:
    print(json.dumps([name, str(error), sys.path == before]))
"""
    done = run([sys.executable, "-c", text], tmp_path)
    assert done.returncode == 0, done.stderr
    name, error, is_as_before = json.loads(done.stdout.splitlines()[-1])
    assert name.startswith("class")
    assert re.search(
        "model._target_=mine.Net: .*project 2/mine.py.* but this process .*project 1/mine.py", error
    )
    assert is_as_before


@pytest.mark.parametrize("kind", KINDS)
def test_mirror_images(trained: dict[str, RunFolder], kind: str) -> None:
    path = trained[kind].path
    if kind == "numbers":
        with pytest.raises(ValueError, match=r"^task\._target_=.* has no probabilities"):
            lockstep.load(path, trust=True, flip=True)
        return
    network = lockstep.load(path, trust=True)
    shape = (4, *network.image_shape)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    if kind != "floats":
        images = (255 * images).to(torch.uint8)
    both = torch.stack([network(images).values, network(images.flip(3)).values])
    found = lockstep.load(path, trust=True, flip=True)(images).values
    torch.testing.assert_close(found, both.mean(0), rtol=0, atol=1e-6)
    assert abs(both[0] - both[1]).max() > 1e-4

"""`lockstep.load` predicts what `lockstep predict` writes, for every kind of input, and reports errors."""

import csv
import json
import random
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
from lockstep.assembly.precision import keep_float32
from lockstep.data import synthetic
from lockstep.data.images.preprocessing import View
from lockstep.data.splits import whole
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
OWN_MODULE = [
    "data=synthetic",
    "strategy=cpu",
    "module._target_=tests.support.own_modules.Plain",
]
# an eval_batch_size of 10 (SMALL) cuts the images into batches, of which the last is smaller
SYNTHETIC = [*PLAIN, "data=synthetic", "data.train_size=70", "data.image_size=16"]
LABELLED = [*SOURCE, "trainer.precision=float32", "data._target_=tests.support.sources.labelled"]
FLOATS = [*SOURCE, *WITHOUT_CROPS, "~data.memory", "data._target_=tests.support.sources.few_digits"]
KINDS = {
    "colour": [*SYNTHETIC, "data.channels=3", "trainer.precision=float32"],
    "float64": [*SMALL],
    "bfloat16": [*SYNTHETIC, "trainer.precision=bfloat16"],
    "floats": [*FLOATS, "+data.is_float=true", "trainer.precision=float32"],
    "labels": [*LABELLED, "task=multilabel", "+data.kind=labels"],
    "numbers": [*LABELLED, "task=regression", "+data.kind=number"],
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
        write_image(folder / f"{number % 3}" / f"{number}.png", seed=number, height=9 + number, width=20)
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


@pytest.mark.parametrize(("kind", "checkpoint"), [*((kind, "best") for kind in KINDS), ("float64", "last")])
def test_a_folder_is_predicted_as_the_command_does(
    trained: dict[str, RunFolder], photos: Path, tmp_path: Path, kind: str, checkpoint: Any
) -> None:
    network = lockstep.load(trained[kind].path, checkpoint=checkpoint, trust=True)
    predictions = network(photos)
    written = predicted(trained[kind], photos, tmp_path / "out.csv", "--checkpoint", checkpoint)
    assert rows_of(kind, predictions) == written
    assert [one.file for one in predictions] == [*map(str, sorted(photos.rglob("*.png")))]


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_those_that_the_command_writes(
    trained: dict[str, RunFolder], photos: Path, tmp_path: Path, kind: str
) -> None:
    network = lockstep.load(trained[kind].path, trust=True)
    found = network.features(photos)
    commands.output_of(tmp_path, "embed", trained[kind].path, photos, "--output", "out.npy", "--trust")
    written = np.load(tmp_path / "out.npy")
    assert str(written.dtype) == str(found.dtype).removeprefix("torch.")
    assert found.dtype == (torch.float64 if kind == "float64" else torch.float32)
    bound = 0.02 if kind == "bfloat16" else 1e-5  # of the sum in another order, in batches of another size
    np.testing.assert_allclose(found.numpy(), written, rtol=bound, atol=bound)
    one = network.features(sorted(photos.rglob("*.png"))[3])
    torch.testing.assert_close(one, found[3:4], rtol=bound, atol=bound)
    assert network.features([]).shape == (0, found.shape[1])


def test_broken_photos(trained: dict[str, RunFolder], photos: Path, tmp_path: Path) -> None:
    before = predicted(trained["float64"], photos, tmp_path / "all.csv")
    mixed = shutil.copytree(photos, tmp_path / "mixed")
    paths, broken = sorted(mixed.rglob("*.png")), (0, 11, 22)
    for place in broken:
        paths[place].write_bytes(b"no image")
    words = ("predict", trained["float64"].path, mixed, "--output", "out.csv", "--devices", "2", "--trust")
    strict = commands.lockstep(tmp_path, *words, "--strict")
    assert (strict.returncode, strict.stdout, (tmp_path / "out.csv").exists()) == (2, "", False)
    done = commands.lockstep(tmp_path, *words)
    assert done.returncode == 1
    assert [place for place in broken if str(paths[place]) not in done.stderr] == []
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    others = [place for place in range(23) if place not in broken]
    # float64: a batch of other images ends with the same six digits
    assert [row[1:] for row in rows] == [before[place] for place in others]
    network = lockstep.load(trained["float64"].path)
    found = network(mixed)
    assert [place for place in range(23) if found[place].error is not None] == [*broken]
    assert torch.equal(found.values[others], network(photos).values[others])
    for values in (found.values, network.features(mixed)):
        assert torch.equal(values.isnan().all(1).nonzero().flatten(), torch.tensor(broken))


@pytest.mark.parametrize("kind", ["floats", "float64"])
def test_the_test_images_as_tensors_are_predicted_as_the_command_does(
    trained: dict[str, RunFolder], tmp_path: Path, kind: str
) -> None:
    """Floats reach a network that was trained on floats as they do in training."""
    config = lockstep.Run(trained[kind].path).config["data"]
    names = ("num_classes", "channels", "image_size", "train_size", "val_size", "test_size", "seed")
    splits = few_digits(is_float=True) if kind == "floats" else synthetic(**{name: config[name] for name in names})
    images = whole(splits.test.pixels)
    predictions = lockstep.load(trained[kind].path, trust=True)(images)
    assert rows_of(kind, predictions) == predicted(trained[kind], "test", tmp_path / "out.csv")


@pytest.mark.parametrize("kind", ["colour", "labels", "numbers"])
def test_every_way_to_give_an_image_gives_the_same(trained: dict[str, RunFolder], photos: Path, kind: str) -> None:
    network = lockstep.load(trained[kind].path, trust=True)
    paths = sorted(photos.rglob("*.png"))[:5]
    by_path = network(paths)
    as_images: list[Any] = [Image.open(path) for path in paths]
    pixels = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in as_images]
    ways: dict[str, list[Any]] = {"PIL": as_images, "arrays": [np.asarray(image) for image in as_images]}
    if kind == "colour":  # tensors are not made grey
        ways |= {"uint8": pixels, "floats": [image / 255 for image in pixels]}
        ways |= {"float64": [image.double() / 255 for image in pixels]}
        ways |= {"mixed": [paths[0], as_images[1], pixels[2], pixels[3] / 255, pixels[4][None]]}
        view = View.from_keys(16, "auto", "crop", "auto", "white")
        assert torch.equal(network(torch.stack([view(image) for image in pixels])).values, by_path.values)
    assert network([]).values.shape == (0, by_path.values.shape[1])
    for name, given in ways.items():
        assert torch.equal(network(given).values, by_path.values), name
        if name != "mixed":
            # float32: another size of the batch is added up in another order
            assert torch.allclose(network(given[3]).values, by_path[3].values, rtol=0, atol=1e-6)


def test_a_prediction_leaves_the_process_as_it_was(trained: dict[str, RunFolder], photos: Path) -> None:
    with keep_float32():
        torch.set_float32_matmul_precision("medium")
        states = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
        assert lockstep.load(trained["colour"].path)(photos).values.is_inference() is False
        assert torch.get_float32_matmul_precision() == "medium"
        assert (random.getstate(), str(np.random.get_state())) == states[:2]
        assert torch.equal(torch.get_rng_state(), states[2])


# -- errors ------------------------------------------------------------------------------------------------------------


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
    trained: dict[str, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: Any, error: str
) -> None:
    folder = write_run(tmp_path / "run", SMALL)
    folder.checkpoints.mkdir()
    folder.last_checkpoint.write_text("half of it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lockstep.system.hardware.num_visible_gpus", lambda: 1)
    with pytest.raises((OSError, ValueError, RuntimeError), match=error):
        lockstep.load(trained["colour"].path if name == "trained" else name, **options)


def test_a_custom_module_is_rejected(tmp_path: Path) -> None:
    own = write_run(tmp_path / "own", OWN_MODULE)
    own.checkpoints.mkdir()
    torch.save({"weight": torch.zeros(3)}, own.best_checkpoint)
    with pytest.raises(lockstep.ConfigError, match=r"needs the predictions of a task, and module"):
        lockstep.load(own.path, trust=True)


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
TINY = ["data=synthetic", "data.train_size=40", "trainer.max_epochs=1", "strategy=cpu"]
OWN = ["model._target_=mine.Net", *(f"~model.{key}" for key in ("width", "stem", "shortcut_norm", "bias", "dropout"))]


def test_custom_networks_are_found_and_never_mistaken_for_another_of_the_same_name(tmp_path: Path) -> None:
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
    assert re.search("model._target_=mine.Net: .*project 2/mine.py.* but this process .*project 1/mine.py", error)
    assert is_as_before

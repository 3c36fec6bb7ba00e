"""`lockstep.load` predicts what `lockstep predict` writes, for every kind of input, and reports errors."""

import csv
import json
import os
import random
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
from lockstep.data.images.preprocessing import View
from lockstep.data.splits import whole
from lockstep.inference import predict
from lockstep.runs.folder import RunFolder
from tests.support import commands
from tests.support.commands import run
from tests.support.harness import ROOT, SMALL, command, environ, train_all, write_run
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
    words = [sys.executable, "-m", "lockstep", "predict", folder.path, source, "--output", output, "--trust", *more]
    done = run(list(map(str, words)), output.parent, {**environ(), "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
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
    assert [Path(str(one.file)).relative_to(photos).as_posix() for one in predictions] == [
        path.relative_to(photos).as_posix() for path in sorted(photos.rglob("*.png"))
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_those_that_the_command_writes(
    trained: dict[str, RunFolder], photos: Path, tmp_path: Path, kind: str
) -> None:
    network = lockstep.load(trained[kind].path, trust=True)
    found = network.features(photos)
    done = commands.lockstep(tmp_path, "embed", trained[kind].path, photos, "--output", "out.npy", "--trust")
    assert done.returncode == 0, done.stderr
    written = np.load(tmp_path / "out.npy")
    assert (str(written.dtype), written.shape) == (str(found.dtype).removeprefix("torch."), found.shape)
    assert found.dtype == (torch.float64 if kind == "float64" else torch.float32)
    bound = 0.02 if kind == "bfloat16" else 1e-5  # of the sum in another order, in batches of another size
    np.testing.assert_allclose(found.numpy(), written, rtol=bound, atol=bound)
    paths = sorted(photos.rglob("*.png"))
    torch.testing.assert_close(network.features(paths[3]), found[3:4], rtol=bound, atol=bound)
    assert network.features([]).shape == (0, found.shape[1])
    assert not found.is_inference()


def test_a_broken_photo_costs_no_other_one(trained: dict[str, RunFolder], photos: Path, tmp_path: Path) -> None:
    whole_rows = predicted(trained["float64"], photos, tmp_path / "all.csv")
    mixed = shutil.copytree(photos, tmp_path / "mixed")
    paths = sorted(mixed.rglob("*.png"))
    for place in (0, 11, 22):
        paths[place].write_bytes(b"no image")
    out = tmp_path / "out.csv"
    words = [sys.executable, "-m", "lockstep", "predict", trained["float64"].path, mixed, "--output", out]
    words += ["--devices", 2]
    strict = run([*map(str, words), "--strict"], tmp_path, {**environ(), "PYTHONPATH": str(ROOT)})
    assert (strict.returncode, strict.stdout, out.exists()) == (2, "", False)
    done = run([*map(str, words)], tmp_path, {**environ(), "PYTHONPATH": str(ROOT)})
    lines = [f"image {paths[place]} cannot be read (not an image): replace or delete it." for place in (0, 11, 22)]
    assert (done.returncode, done.stdout) == (1, f"20 predictions in {out}\n")
    assert done.stderr.splitlines()[:3] == lines
    assert done.stderr.splitlines()[3:] == [
        "3 of 23 images cannot be read and are left out; --strict writes nothing then"
    ]
    assert all(line in strict.stderr for line in lines)
    with out.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    kept = [place for place in range(23) if place not in (0, 11, 22)]
    assert [row[0] for row in rows] == [paths[place].relative_to(mixed).as_posix() for place in kept]
    # float64: a batch of other images ends with the same six digits
    assert [row[1:] for row in rows] == [whole_rows[place] for place in kept]
    network = lockstep.load(trained["float64"].path)
    found = network(mixed)
    assert [place for place in range(23) if found[place].error is not None] == [0, 11, 22]
    assert found[11].error == lines[1]
    assert torch.equal(found.values[kept], network(photos).values[kept])
    for values in (found.values, network.features(mixed)):
        assert torch.equal(values.isnan().all(1).nonzero().flatten(), torch.tensor([0, 11, 22]))
    with pytest.raises(ValueError, match="cannot be read"):
        _ = found[11].class_name


def test_many_images_are_computed_in_the_batches_of_the_command(
    trained: dict[str, RunFolder], photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    plain = predict.predictions

    def seen(module: Any, inputs: Any) -> Any:
        sizes.append(len(inputs))
        return plain(module, inputs)

    monkeypatch.setattr(predict, "predictions", seen)
    lockstep.load(trained["colour"].path)(photos)
    assert sizes == [10, 10, 3]


@pytest.mark.parametrize("kind", ["floats", "float64"])
def test_the_test_images_as_tensors_are_predicted_as_the_command_does(
    trained: dict[str, RunFolder], tmp_path: Path, kind: str
) -> None:
    """Floats reach a network that was trained on floats as they do in training."""
    if kind == "floats":
        images = whole(few_digits(is_float=True).test.pixels)
        assert images.min() < 0
    else:
        from lockstep.data import synthetic

        config = lockstep.Run(trained[kind].path).config["data"]
        names = ("num_classes", "channels", "image_size", "train_size", "val_size", "test_size", "seed")
        images = whole(synthetic(**{name: config[name] for name in names}).test.pixels)
    predictions = lockstep.load(trained[kind].path, trust=True)(images)
    assert rows_of(kind, predictions) == predicted(trained[kind], "test", tmp_path / "out.csv")


@pytest.mark.parametrize("kind", ["colour", "labels", "numbers"])
def test_every_way_to_give_an_image_gives_the_same(trained: dict[str, RunFolder], photos: Path, kind: str) -> None:
    network = lockstep.load(trained[kind].path, trust=True)
    paths = sorted(photos.rglob("*.png"))[:5]
    by_path = network(paths)
    assert isinstance(by_path, lockstep.Predictions)
    as_images: list[Any] = [Image.open(path) for path in paths]
    pixels = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in as_images]
    ways: dict[str, list[Any]] = {"PIL": as_images, "arrays": [np.asarray(image) for image in as_images]}
    if kind == "colour":  # tensors are not made grey
        ways |= {"uint8": pixels, "floats": [image / 255 for image in pixels]}
        ways |= {"float64": [image.double() / 255 for image in pixels]}
        ways |= {"mixed": [paths[0], as_images[1], pixels[2], pixels[3] / 255, pixels[4][None]]}
        view = View.from_keys(16, "auto", "crop", "auto", "white")
        assert torch.equal(network(torch.stack([view(image) for image in pixels])).values, by_path.values)
        assert isinstance(network(pixels[0][None]), lockstep.Predictions)
    for name, given in ways.items():
        assert torch.equal(network(given).values, by_path.values), name
        if name != "mixed":
            alone = network(given[3])
            assert isinstance(alone, lockstep.Prediction)
            # float32: another size of the batch is added up in another order
            assert torch.allclose(alone.values, by_path[3].values, rtol=0, atol=1e-6)


def test_no_image_is_predicted_by_no_prediction(trained: dict[str, RunFolder]) -> None:
    for kind, width in (("colour", 10), ("labels", 2)):
        found = lockstep.load(trained[kind].path, trust=True)([])
        assert (len(found), found.values.shape) == (0, (0, width))


def test_a_prediction_leaves_the_process_as_it_was(trained: dict[str, RunFolder], photos: Path) -> None:
    with keep_float32():
        torch.set_float32_matmul_precision("medium")
        states = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
        network = lockstep.load(trained["colour"].path)
        assert network(photos).values.is_inference() is False
        assert torch.get_float32_matmul_precision() == "medium"
        assert (random.getstate(), str(np.random.get_state())) == states[:2]
        assert torch.equal(torch.get_rng_state(), states[2])


def test_the_text_of_a_predictor(trained: dict[str, RunFolder]) -> None:
    text = "10 classes of 1x16x16 images, float64 on cpu)"
    assert repr(lockstep.load(trained["float64"].path, device="cpu")).endswith(text)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_rejected_with_the_accepted_ones(
    trained: dict[str, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trained["colour"].path
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere is not a run folder"):
        lockstep.load("nowhere")
    wrong: Any = "newest"
    with pytest.raises(ValueError, match=r'checkpoint=.newest. does not exist: choose "best" or "last"'):
        lockstep.load(path, checkpoint=wrong)
    with pytest.raises(RuntimeError, match="device type at start of device string: gpu"):
        lockstep.load(path, device="gpu")
    monkeypatch.setattr("lockstep.system.hardware.num_visible_gpus", lambda: 1)
    for device in ("cuda:1", "meta"):
        with pytest.raises(ValueError, match=f'device="{device}" does not exist: this machine has 1 GPU;'):
            lockstep.load(path, device=device)


def test_a_missing_or_damaged_checkpoint_is_named_with_the_hint(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", SMALL)
    with pytest.raises(FileNotFoundError, match=r"best\.ckpt does not exist: has the run finished an epoch"):
        lockstep.load(folder.path)
    folder.checkpoints.mkdir()
    folder.last_checkpoint.write_text("half of it")
    with pytest.raises(
        ValueError, match=r'last\.ckpt is damaged.*: restore it from a backup, or try checkpoint="best"'
    ):
        lockstep.load(folder.path, checkpoint="last")


def test_a_custom_module_is_rejected(tmp_path: Path) -> None:
    own = write_run(tmp_path / "own", OWN_MODULE)
    own.checkpoints.mkdir()
    torch.save({"weight": torch.zeros(3)}, own.best_checkpoint)
    with pytest.raises(
        lockstep.ConfigError, match=r"lockstep\.load needs the predictions of a task, and module"
    ) as error:
        lockstep.load(own.path, trust=True)
    assert "\n" not in str(error.value)


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
    assert error.startswith("model._target_=mine.Net: the run has mine from ")
    assert os.path.join("project 2", "mine.py") in error.partition("but this process")[0]
    assert os.path.join("project 1", "mine.py") in error.partition("but this process")[2]
    assert is_as_before

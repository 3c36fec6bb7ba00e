"""The average of the networks of a sweep: its probabilities, its title, and what is refused.

That of an image and its mirror image for every task: test_predictor.py.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from PIL import Image

import lockstep
from lockstep.runs.folder import RunFolder
from lockstep.trials.out_of_fold import names
from tests.support import commands, sweeps
from tests.support.commands import rows_of
from tests.support.image_files import write_image

pytestmark = [pytest.mark.full, pytest.mark.processes]
# enough validation images for calibration
SEEDS = (
    *(text for text in sweeps.TINY if not text.startswith(("data.val_size", "trainer.precision"))),
    *("data.val_size=120", "optimizer.lr=0.05", "trainer.precision=float32", "seed=0,1,2"),
)
FOLDS = (
    *(text for text in sweeps.TINY if not text.startswith(("data", "trainer.precision"))),
    *("data=image_folder", "data.root=images", "data.image_size=16", "data.cache=null"),
    *("trainer.precision=float32", "data.folds=2", "data.fold=0,1"),
)
NUM_CLASSES = 10


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("seeds")
    sweeps.run(root, *SEEDS, code=0)
    return sweeps.tree_of(root)


@pytest.fixture(scope="module")
def folds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folds")
    for number in range(40):
        write_image(root / "images" / f"{number % 2}" / f"{number}.png", number, 20, 24)
    sweeps.run(root, *FOLDS, code=0)
    return sweeps.tree_of(root)


def predicted(cwd: Path, run: Path, *more: str | Path) -> np.ndarray[Any, Any]:
    """The probabilities (n, C) of the test images in the order of the classes."""
    words = ("predict", run, "test", "--top-k", str(NUM_CLASSES), "--output", "rows.csv", *more)
    commands.output_of(cwd, *words)
    ends = ["", *(f"_{rank}" for rank in range(2, NUM_CLASSES + 1))]
    return np.array(
        [
            [
                value
                for _, value in sorted(
                    (row[f"class{e}"], float(row[f"probability{e}"])) for e in ends
                )
            ]
            for row in rows_of(cwd / "rows.csv")
        ]
    )


def test_average_of_tables(seeds: Path, tmp_path: Path) -> None:
    members = np.stack([predicted(tmp_path, seeds / str(trial)) for trial in range(3)])
    assert abs(members[0] - members[1]).max() > 0.01
    tables = set[bytes]()
    for devices in ("1", "3"):
        average = predicted(tmp_path, seeds, "--devices", devices)
        tables.add((tmp_path / "rows.csv").read_bytes())
        assert abs(average - members.mean(0)).max() <= 1e-6
    assert len(tables) == 1
    line, *_ = commands.output_of(tmp_path, "predict", seeds, "test").splitlines()
    assert line == f"Average of 3 networks: trials 0, 1, 2 of {seeds}"


def test_evaluation_of_average(seeds: Path, tmp_path: Path) -> None:
    average = predicted(tmp_path, seeds, "--flip")
    words = ("eval", seeds, "--flip", "--output", "eval.csv", "--devices", "2", "--json")
    found = json.loads(commands.output_of(tmp_path, *words))
    truths = np.array([int(row["truth"].split()[-1]) for row in rows_of(tmp_path / "eval.csv")])
    of_truth = average[np.arange(len(truths)), truths]
    assert found["metrics"]["loss"] == pytest.approx(-np.log(of_truth).mean(), abs=1e-4)
    assert found["metrics"]["accuracy"] == pytest.approx((average.argmax(1) == truths).mean())
    assert found["average"].startswith("Average of 3 networks, and of each image's mirror image:")


def test_average_of_folds(folds: Path, tmp_path: Path) -> None:
    """Each fold normalizes by its own statistics, in an exported file, too."""
    members = [lockstep.load(folds / fold, device="cpu") for fold in ("0", "1")]
    assert (members[0]._module.mean != members[1]._module.mean).all()
    images = sorted((folds.parents[2] / "images").rglob("*.png"))
    mean = torch.stack([member(images).values for member in members]).mean(0)
    network = lockstep.load(folds, device="cpu")
    torch.testing.assert_close(network(images).values, mean, rtol=0, atol=1e-6)
    commands.output_of(tmp_path, "export", folds, "--output", "out.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    facts = json.loads(session.get_modelmeta().custom_metadata_map["lockstep"])
    assert facts["average"] == f"Average of 2 networks: trials 0, 1 of {folds}"
    assert "mean" not in facts
    pixels = network._preprocessing(
        torch.from_numpy(np.array(Image.open(images[0]))).permute(2, 0, 1)
    )
    outputs: Any = session.run(None, {"images": pixels[None].numpy()})
    assert np.abs(outputs[0][0] - mean[0].numpy()).max() <= 1e-5


@pytest.mark.parametrize("words", [("eval",), ("predict", "val")])
def test_images_of_other_folds(folds: Path, tmp_path: Path, words: Sequence[str]) -> None:
    """A fold was trained on the test images of the others."""
    command, *source = words
    done = commands.lockstep(tmp_path, command, folds, *source)
    assert done.returncode == 2
    assert "the average cannot use this split" in done.stderr


def test_other_data_with_trained_images(folds: Path, tmp_path: Path) -> None:
    """Images that any of the networks was trained on are named."""
    for name in names(RunFolder(folds / "0"), "test")[:4]:
        (tmp_path / "some" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folds.parents[2] / "images" / name, tmp_path / "some" / name)
    found = json.loads(
        commands.output_of(tmp_path, "eval", folds, "data.root=some", "--split", "all", "--json")
    )
    assert "check that these are other images" in found["notes"]["training names"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("predict", "SWEEP", "test", "--max-error", "0.4"), "--max-error 0.4 holds for"),
        (("predict", "SWEEP/0", "test", "--flip", "--max-error", "0.4"), "--max-error 0.4 holds"),
        (("embed", "SWEEP", "test", "--output", "x.npy"), "is a sweep, not a run"),
    ],
)
def test_average_refused(seeds: Path, tmp_path: Path, words: Sequence[str], error: str) -> None:
    done = commands.lockstep(tmp_path, *(word.replace("SWEEP", str(seeds)) for word in words))
    assert done.returncode == 2
    assert error in done.stderr


def test_features_of_average_refused(seeds: Path) -> None:
    network = lockstep.load(seeds, device="cpu", flip=True)
    assert repr(network).startswith("Predictor(Average of 3 networks, and of each image's mirror")
    with pytest.raises(ValueError, match=r"^features are those of one network"):
        network.features(torch.zeros(3, *network.image_shape))


def test_unfinished_members(seeds: Path, tmp_path: Path) -> None:
    sweep = Path(shutil.copytree(seeds, tmp_path / "sweep"))
    RunFolder(sweep / "1").status_file.unlink()
    line, *_ = commands.output_of(tmp_path, "predict", sweep, "test", "--trust").splitlines()
    assert line == "Average of 2 networks: trials 0, 2 of sweep, without trial 1 (queued)"
    for trial in ("0", "2"):
        RunFolder(sweep / trial).status_file.unlink()
    with pytest.raises(ValueError, match=r"no finished trial .* trial 0 \(queued\), trial 1"):
        lockstep.load(sweep, trust=True)


def test_changed_members(seeds: Path, tmp_path: Path) -> None:
    sweep = Path(shutil.copytree(seeds, tmp_path / "sweep"))
    saved = torch.load(RunFolder(sweep / "2").best_checkpoint, weights_only=True)
    saved["image_format"]["class_names"] = tuple("abcdefghij")
    torch.save(saved, RunFolder(sweep / "2").best_checkpoint)
    with pytest.raises(ValueError, match="have different classes or image sizes"):
        lockstep.load(sweep, trust=True)
    config = yaml.safe_load(RunFolder(sweep / "1").config.read_text())
    config["model"]["width"] = 8
    RunFolder(sweep / "1").config.write_text(yaml.safe_dump(config))
    with pytest.raises(ValueError, match=r"because model\.width was changed"):
        lockstep.load(sweep, trust=True)


def test_no_setting_selected_by_test(tmp_path: Path) -> None:
    settings = ("+data.validate_on_test=true", "calibrate=false", "sweep.test=all")
    sweeps.run(tmp_path, *sweeps.TINY, *settings, "optimizer.lr=0.01,0.1", code=0)
    with pytest.raises(ValueError, match=r"data\.validate_on_test=true selects none"):
        lockstep.load(sweeps.tree_of(tmp_path))

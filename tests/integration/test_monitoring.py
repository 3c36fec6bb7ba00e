"""TensorBoard and pictures of a run: complete, and the same from any number of workers."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util
from torch import Tensor

from lockstep.callbacks import plots
from lockstep.callbacks.tensorboard import split_and_tag
from lockstep.launch import worker
from lockstep.models.classifier import Classifier
from lockstep.runs.discovery import read_confusion
from lockstep.runs.folder import RunFolder
from tests.support.boards import full_board, told
from tests.support.exact import train
from tests.support.harness import SMALL, WATCHED, train_all, write_run

pytestmark = [pytest.mark.full, pytest.mark.processes]
PICTURES = {"confusion_matrix", "predictions", "reliability", "worst_mistakes"}
PICTURE_FILES = {*(f"{name}.png" for name in PICTURES), "confusion_matrix.json"}
EVERY_TAG = {
    "train": {
        "accuracy", "accuracy/step", "loss", "loss/step", "machine/images_per_s", "machine/memory_gib",
        "optimization/gradient_norm", "optimization/learning_rate",
    },
    "val": {"accuracy", "loss"},
    "test": {"accuracy", "loss"},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, RunFolder]:
    """The same training by one process, and by three with uneven shards."""
    root: Path = tmp_path_factory.mktemp("monitoring")
    recipe = [
        *SMALL,
        *WATCHED,
        "data.num_classes=4",
        "callbacks.pictures.num_images=8",
    ]
    recipe.append("trainer.gradient_clip_norm=null")
    found = {}
    for world_size, loads in ((1, "null"), (3, "[2,0,1]")):
        overrides = [*recipe, f"trainer.devices={world_size}", f"trainer.loads={loads}"]
        found[world_size] = write_run(root / str(world_size), overrides)
        found[world_size].note(overrides=["model.width=4", f"trainer.devices={world_size}", "name=a b"])
        others = []
        if world_size == 1:
            others = [write_run(root / "no logger", [*SMALL, *WATCHED, "logger=none", "trainer.max_epochs=1"])]
        train_all([found[world_size], *others], world_size)
    return found


def events(folder: RunFolder, split: str = "train") -> EventAccumulator:
    """Everything TensorBoard reads of a split of a run."""
    return EventAccumulator(str(folder.curves(split)), size_guidance={"scalars": 0, "images": 0, "tensors": 0}).Reload()


def tensors(found: EventAccumulator, tag: str) -> Any:
    return tensor_util.make_ndarray(found.Tensors(tag)[-1].tensor_proto)


def test_every_number_has_its_curve(runs: dict[int, RunFolder]) -> None:
    for split, tags in EVERY_TAG.items():
        assert set(events(runs[3], split).Tags()["scalars"]) == tags


@pytest.mark.parametrize(
    ("name", "split", "tag"),
    [
        ("train/loss", "train", "loss"),
        ("test/loss", "test", "loss"),
        ("train_step/loss", "train", "loss/step"),
        ("learning_rate", "train", "optimization/learning_rate"),
        ("own/test/loss", "train", "own/test/loss"),
    ],
)
def test_a_quantity_has_one_name_in_all_splits(name: str, split: str, tag: str) -> None:
    assert split_and_tag(name) == (split, tag)


def test_tensorboard_names_runs_by_their_folders_and_draws_train_and_validation_in_one_chart(
    runs: dict[int, RunFolder],
) -> None:
    """It gives colours to runs, and a chart to each name: one name under two runs is two colours in one chart."""
    found = told(full_board(runs[1].path.parent).get("/data/plugin/scalars/tags"))
    assert set(found) == {f"{world_size}{split}" for world_size in runs for split in ("", "/validation", "/test")}
    first, second, *_ = sorted({tag.partition("/")[0] for tags in found.values() for tag in tags})
    assert (first, second) == ("accuracy", "loss")  # the groups that Time Series opens
    assert set(found["3"]) & set(found["3/validation"]) == {"accuracy", "loss"}


def test_curves_of_any_number_of_workers_are_the_same(runs: dict[int, RunFolder]) -> None:
    for split, tags in EVERY_TAG.items():
        alone, shared = events(runs[1], split), events(runs[3], split)
        for tag in tags - {"machine/images_per_s", "machine/memory_gib"}:
            one, other = ([(e.step, e.value) for e in found.Scalars(tag)] for found in (alone, shared))
            assert len(one) > 0
            assert [step for step, _ in one] == [step for step, _ in other], tag
            assert [value for _, value in one] == pytest.approx([value for _, value in other], rel=1e-6), tag


def test_pictures_are_the_same_from_any_number_of_workers(runs: dict[int, RunFolder]) -> None:
    for name in PICTURES:
        one, other = (np.asarray(Image.open(folder.pictures / f"test_{name}.png")) for folder in runs.values())
        assert one.shape == other.shape
        assert (one == other).mean() > 0.999, name
    assert {path.name for path in runs[3].pictures.iterdir()} == {f"test_{name}" for name in PICTURE_FILES}
    images = events(runs[3], "test")
    assert set(images.Tags()["images"]) == {f"test/{name}" for name in PICTURES}
    assert [event.step for event in images.Images("test/predictions")] == [10]


def test_the_numbers_of_the_confusion_matrix_are_those_of_the_test(runs: dict[int, RunFolder]) -> None:
    for folder in runs.values():
        found = read_confusion(folder)
        assert found is not None
        assert (found["split"], found["step"], found["num_classes"]) == ("test", 10, 4)
        assert found["classes"] == ["class 0", "class 1", "class 2", "class 3"]
        counts = np.array(found["counts"])
        assert counts.sum() == 31
        assert counts.trace() / 31 == pytest.approx(folder.read_summary()["test_accuracy"])
    assert read_confusion(runs[1]) == read_confusion(runs[3])


def test_the_status_is_complete(runs: dict[int, RunFolder]) -> None:
    status = runs[3].read_status()
    with open(runs[3].path / "metrics.csv") as file:
        last = list(csv.DictReader(file))[-1]
    assert status["state"] == "finished"
    assert (status["epoch"], status["step"], status["total_steps"], status["percent"]) == (2, 10, 10, 100.0)
    assert (status["workers"], status["precision"], status["name"]) == (3, "float64", "synthetic_resnet18")
    assert (status["monitor"], status["mode"]) == ("val/accuracy", "max")
    assert status["learning_rate"] == float(last["learning_rate"])
    assert status["epoch_s"] == pytest.approx(float(last["seconds"]), abs=2e-3)
    assert status["metrics"]["val/loss"] == float(last["val/loss"])


def test_without_a_logger_pictures_are_still_in_the_folder(runs: dict[int, RunFolder]) -> None:
    folder = RunFolder(runs[1].path.parent / "no logger")
    assert {path.name for path in folder.pictures.iterdir()} == {f"test_{name}" for name in PICTURE_FILES}
    assert list(folder.path.rglob("events.*")) == []


def test_a_failure_of_a_picture_does_not_fail_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("no space left")

    folder = write_run(tmp_path / "run", [*SMALL, *WATCHED, "logger=none", "trainer.max_epochs=1"])
    folder.pictures.mkdir()
    (folder.pictures / "test_worst_mistakes.png").write_text("of an earlier session")
    monkeypatch.setattr(plots, "confusion_matrix", fail)
    with pytest.warns(UserWarning, match="pictures of the test are incomplete: OSError"):
        assert worker.run_here(worker.Job(worker.TRAIN, str(folder.path), {"command": "", "has_test": True}), None) == 0
    assert folder.read_status()["state"] == "finished"
    assert "test_accuracy" in folder.read_summary()
    assert {path.stem for path in folder.pictures.iterdir()} == {"test_confusion_matrix", "test_reliability"}


def test_a_failure_of_the_test_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = Classifier._evaluate

    def fail(self: Classifier, split: str, batch: Any) -> Tensor | None:
        if split == "test":
            raise RuntimeError("out of memory")
        return evaluate(self, split, batch)

    folder = write_run(tmp_path / "run", [*SMALL, "trainer.max_epochs=1"])
    monkeypatch.setattr(Classifier, "_evaluate", fail)
    assert worker.run_here(worker.Job(worker.TRAIN, str(folder.path), {"command": "", "has_test": True}), None) == 1
    assert folder.failure.read_text().splitlines()[-1] == "RuntimeError: out of memory"


def test_a_metric_that_is_always_nan_has_no_best_epoch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    odd = ("+task.metrics.odd._target_=tests.support.planted.Undefined", "callbacks.checkpoint.monitor=val/odd")
    run = write_run(tmp_path / "run", [*SMALL, *odd, "callbacks.checkpoint.mode=max"])
    assert train(run) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines.count("val/odd is nan: such an epoch is never the best one") == 1
    (line,) = (line for line in lines if line.startswith("best "))
    assert line.startswith("best           none: no epoch has a finite val/odd, ")
    assert line.endswith("checkpoints/best.ckpt is the last one")
    summary = run.read_summary()
    assert (summary["monitor"], summary["best"], run.read_status()["best"]) == ("val/odd", None, None)
    best, last = (torch.load(file, weights_only=True) for file in (run.best_checkpoint, run.last_checkpoint))
    assert best["epoch"] == last["epoch"] == 1

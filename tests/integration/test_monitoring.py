"""TensorBoard and pictures of a run: complete, and the same from any number of workers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lockstep.callbacks import plots
from lockstep.callbacks.tensorboard import split_and_tag
from lockstep.runs.discovery import read_confusion
from lockstep.runs.folder import RunFolder
from tests.support.exact import train
from tests.support.harness import SMALL, WATCHED, train_all, write_run

pytestmark = [pytest.mark.full, pytest.mark.processes]
EVERY_TAG = {
    "train": {
        "accuracy", "accuracy/step", "loss", "loss/step",
        "machine/images_per_s", "machine/memory_gib",
        "optimization/gradient_norm", "optimization/learning_rate",
    },
    "val": {"accuracy", "loss"},
    "test": {"accuracy", "loss"},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, RunFolder]:
    """The same training by one process, and by three with uneven shards."""
    root: Path = tmp_path_factory.mktemp("monitoring")
    recipe = [*SMALL, *WATCHED, "data.num_classes=4", "trainer.gradient_clip_norm=null"]
    found = {}
    for world_size, worker_weights in ((1, "null"), (3, "[2,0,1]")):
        overrides = [
            *recipe,
            f"trainer.devices={world_size}",
            f"trainer.worker_weights={worker_weights}",
        ]
        found[world_size] = write_run(root / str(world_size), overrides)
        train_all([found[world_size]], world_size)
    return found


def events(folder: RunFolder, split: str = "train") -> EventAccumulator:
    """Everything TensorBoard reads of a split of a run."""
    return EventAccumulator(
        str(folder.curves(split)), size_guidance={"scalars": 0, "images": 0, "tensors": 0}
    ).Reload()


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
def test_split_and_tag(name: str, split: str, tag: str) -> None:
    assert split_and_tag(name) == (split, tag)


def test_curves_any_workers(runs: dict[int, RunFolder]) -> None:
    for split, tags in EVERY_TAG.items():
        alone, shared = events(runs[1], split), events(runs[3], split)
        assert set(shared.Tags()["scalars"]) == tags
        for tag in tags - {"machine/images_per_s", "machine/memory_gib"}:
            one, other = (
                [(e.step, e.value) for e in found.Scalars(tag)] for found in (alone, shared)
            )
            assert [step for step, _ in one] == [step for step, _ in other], tag
            assert [value for _, value in one] == pytest.approx(
                [value for _, value in other], rel=1e-6
            ), tag


def test_confusion_matrix(runs: dict[int, RunFolder]) -> None:
    for folder in runs.values():
        found = read_confusion(folder)
        assert found is not None
        counts = np.array(found["counts"])
        assert counts.sum() == 31
        assert counts.trace() / 31 == pytest.approx(folder.read_summary()["test_accuracy"])
    assert read_confusion(runs[1]) == read_confusion(runs[3])


def test_picture_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("no space left")

    folder = write_run(tmp_path / "run", [*SMALL, *WATCHED, "logger=none", "trainer.max_epochs=1"])
    folder.pictures.mkdir()
    (folder.pictures / "test_worst_mistakes.png").write_text("of an earlier session")
    monkeypatch.setattr(plots, "confusion_matrix", fail)
    with pytest.warns(UserWarning, match="pictures of the test are incomplete: OSError"):
        assert train(folder) == 0
    assert {path.stem for path in folder.pictures.iterdir()} == {
        "test_confusion_matrix",
        "test_reliability",
    }

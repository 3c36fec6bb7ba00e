"""A training reports whether its probabilities can be believed, with curves and pictures.

The report is the same by any workers, and by eval.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import lockstep
from lockstep.callbacks import plots
from lockstep.callbacks.tensorboard import split_and_tag
from lockstep.data.splits import all_pixels
from lockstep.launch import worker
from lockstep.models import calibration
from lockstep.runs.discovery import read_confusion
from lockstep.runs.folder import RunFolder
from tests.support import commands
from tests.support.exact import train, trained
from tests.support.harness import SMALL, WATCHED, train_all, write_run
from tests.support.recipes import on_data
from tests.support.sources import SETTINGS, digits

pytestmark = [pytest.mark.full, pytest.mark.processes]
DIGITS = (
    *on_data("data=digits"),
    *("trainer.max_epochs=4", "trainer.gradient_clip_norm=null", "global_batch_size=64"),
)
LABELS = (
    *(
        *DIGITS,
        "data._target_=tests.support.sources.labeled",
        "+data.kind=labels",
        "task=multilabel",
    ),
    *("~data.val_fraction", "~data.test_fraction", "~data.split_seed", "~data.memory"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, RunFolder]:
    """The same training by one and by three processes, with uneven shards."""
    root, found = tmp_path_factory.mktemp("reliability"), {}
    for world_size, worker_weights in ((1, "null"), (3, "[2,0,1]")):
        overrides = (
            *DIGITS,
            *WATCHED,
            f"trainer.devices={world_size}",
            f"trainer.worker_weights={worker_weights}",
        )
        found[world_size] = write_run(root / str(world_size), overrides)
        train_all([found[world_size]], world_size)
    return found


def evaluated(run: RunFolder, *words: str) -> dict[str, Any]:
    done = commands.lockstep(run.path.parent, "eval", str(run.path), "--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["calibration"]


def numbers(report: Any) -> list[float]:
    """All numbers of a report, in order."""
    if isinstance(report, dict | list):
        return [
            number
            for each in (report.values() if isinstance(report, dict) else report)
            for number in numbers(each)
        ]
    return [] if report is None or isinstance(report, str) else [report]


def test_report_any_workers(runs: dict[int, RunFolder]) -> None:
    expected = runs[1].read_summary()["calibration"]
    assert len(numbers(expected)) > 40
    for world_size, run in runs.items():
        found = run.read_summary()["calibration"]
        assert numbers(found) == pytest.approx(numbers(expected), rel=1e-6)
        again = evaluated(run, "--devices", str(world_size % 3 + 1))
        assert numbers(again) == pytest.approx(numbers(found), rel=1e-9)


def test_report_of_predicted_probabilities(
    runs: dict[int, RunFolder],
) -> None:
    test, report = digits(**SETTINGS).test, runs[1].read_summary()["calibration"]
    found = lockstep.load(runs[1].path)(all_pixels(test.pixels)).values
    assert report["calibrated"]["nll"]["value"] == pytest.approx(
        log_loss(test.targets, found.double()), rel=1e-6
    )
    raw = lockstep.load(runs[1].path, calibrate=False)(all_pixels(test.pixels)).values
    assert report["raw"]["nll"]["value"] == pytest.approx(
        log_loss(test.targets, raw.double()), rel=1e-6
    )
    assert report["raw"]["nll"]["value"] == pytest.approx(
        runs[1].read_summary()["test_loss"], rel=1e-6
    )
    for run in runs.values():
        kept = torch.load(run.best_checkpoint, weights_only=True)["calibration"]["test"]
        torch.testing.assert_close(kept["confidences"], found.amax(1).float(), rtol=1e-5, atol=0)
        assert torch.equal(kept["is_right"], found.argmax(1) == test.targets)


def test_report_without_calibration(
    runs: dict[int, RunFolder],
) -> None:
    raw = evaluated(runs[1], "calibrate=false")
    assert "calibrated" not in raw
    assert raw["raw"] == evaluated(runs[1])["raw"]
    assert "calibrated" not in evaluated(runs[1], "--checkpoint", "last")


def test_report_of_late_test(runs: dict[int, RunFolder], tmp_path: Path) -> None:
    late = write_run(tmp_path / "late", DIGITS)
    assert (
        worker.run_here(worker.Job(worker.train, late, {"command": "", "has_test": False}), None)
        == 0
    )
    assert worker.run_here(worker.Job(worker.test, late, {}), None) == 0
    expected = runs[1].read_summary()["calibration"]
    assert numbers(late.read_summary()["calibration"]) == pytest.approx(numbers(expected), rel=1e-9)
    assert "test" in torch.load(late.best_checkpoint, weights_only=True)["calibration"]


def test_report_of_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "MIN_IMAGES", 20)
    run = trained(tmp_path / "run", (*LABELS, *WATCHED))
    report = run.read_summary()["calibration"]
    assert numbers(
        evaluated(run, "--trust", "--devices", "2", "--pictures", "drawn")
    ) == pytest.approx(numbers(report), rel=1e-9)
    assert (tmp_path / "drawn" / "reliability.png").exists()
    assert np.isfinite(numbers(report)).all()


# -- curves and pictures ---------------------------------------------------------------------------


EVERY_TAG = {
    "train": {
        "accuracy", "accuracy/step", "loss", "loss/step",
        "machine/images_per_s", "machine/memory_gib",
        "optimization/gradient_norm", "optimization/learning_rate",
    },
    "val": {"accuracy", "loss"},
    "test": {"accuracy", "loss"},
}  # fmt: skip


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
        summary = folder.read_summary()
        assert counts.sum() == summary["test_images"]
        assert counts.trace() / counts.sum() == pytest.approx(summary["test_accuracy"])
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

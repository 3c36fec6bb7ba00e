"""A training reports, also in plots, whether its probabilities can be believed.

The report is the same by any workers, and by eval.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

import lockstep
from lockstep.data.splits import all_pixels
from lockstep.launch import worker
from lockstep.models import calibration
from lockstep.runs.folder import RunFolder
from tests.support import commands
from tests.support.exact import trained
from tests.support.harness import WATCHED, train_all, write_run
from tests.support.recipes import on_data
from tests.support.sources import SETTINGS, digits

pytestmark = [pytest.mark.full, pytest.mark.processes]
DIGITS = (*on_data("data=digits"), "trainer.max_epochs=4", "global_batch_size=64")
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
    """The same training by one, two and three processes, with uneven shards."""
    root, found = tmp_path_factory.mktemp("reliability"), {}
    for world_size, worker_weights in ((1, "null"), (2, "[1,2]"), (3, "[2,0,1]")):
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

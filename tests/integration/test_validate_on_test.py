"""A training that validates on its test images: the curve of the test, and the last epoch."""

from pathlib import Path

import pytest
import torch

from lockstep.runs.discovery import read_run_folder, restrict_to_epoch
from tests.support.exact import train
from tests.support.harness import difference, train_all, write_run

OVERRIDES = [
    "data.validate_on_test=true", "calibrate=false", "model.width=4", "trainer.max_epochs=3",
    "trainer.precision=float64", "callbacks.pictures=null", "logger=none",
]  # fmt: skip


@pytest.mark.full
@pytest.mark.processes
def test_curve_of_the_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone, together = (write_run(tmp_path / name, OVERRIDES) for name in ("alone", "together"))
    assert train(alone) == 0
    printed = capsys.readouterr().out
    rows = dict(line.split(maxsplit=1) for line in printed.splitlines() if " " in line)
    assert rows["val"].startswith("the test images, for curves only")
    assert rows["last"].startswith("val/accuracy")
    assert "best" not in rows
    train_all([together], 2)
    assert difference(alone, together) <= 1e-12
    summary = alone.read_summary()
    assert summary["train_images"] == 1797 - summary["val_images"]
    assert summary["best"] == pytest.approx(summary["test_accuracy"])
    best, last = (
        torch.load(path, weights_only=True)["global_step"]
        for path in (alone.best_checkpoint, alone.last_checkpoint)
    )
    assert best == last == summary["steps"]
    facts = restrict_to_epoch(read_run_folder(alone), alone)
    assert (facts["metrics_epoch"], "best" in facts, "monitor" in facts) == (3, False, False)
    assert facts["metrics"]["val/accuracy"] == pytest.approx(facts["metrics"]["test/accuracy"])

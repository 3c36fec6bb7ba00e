"""The numbers of a run that commands show are those of one epoch, which they name."""

import re
from pathlib import Path
from typing import Any

import pytest

from lockstep import Run
from lockstep.monitoring.comparison import outcomes
from lockstep.monitoring.selection import all_runs
from lockstep.monitoring.status import show_status
from lockstep.runs.discovery import Watched
from lockstep.runs.files import write_rows
from lockstep.runs.folder import RunFolder


def write_run(path: Path, state: str) -> RunFolder:
    """A probe whose second epoch of three was the best one."""
    path.mkdir()
    folder = RunFolder(path)
    folder.config.touch()
    losses = enumerate((0.9, 0.5, 0.7), 1)
    rows: list[dict[str, Any]] = [{"epoch": n, "step": n, "l2": 10.0**-n, "val/loss": loss} for n, loss in losses]
    write_rows(folder.metrics, rows)
    metrics = {"l2": 1e-3, "test/loss": 0.6}
    if state != "finished":  # the last epoch of a finished run may have no validation
        metrics["val/loss"] = 0.7
    folder.write_status(state=state, epoch=3, max_epochs=3, monitor="val/loss", mode="min", best=0.5, metrics=metrics)
    if state == "finished":
        folder.write_summary({"best": 0.5, "test_loss": 0.6})
    return folder


@pytest.mark.parametrize(("state", "epoch", "l2", "loss"), [("finished", 2, 1e-2, 0.5), ("stopped", 3, 1e-3, 0.7)])
def test_metrics_of_one_epoch(tmp_path: Path, state: str, epoch: int, l2: float, loss: float) -> None:
    folder = write_run(tmp_path / "run", state)
    compared = dict(outcomes([folder]))
    assert (compared["metrics_epoch"], compared["l2"], compared["val/loss"]) == ([epoch], [l2], [loss])
    (listed,) = all_runs(Watched(tmp_path, scan_every_s=0.0))
    assert (listed.value("metrics_epoch"), listed.value("l2")) == (epoch, l2)
    assert (Run(folder.path)["metrics_epoch"], Run(folder.path)["l2"]) == (epoch, l2)


def test_status_of_one_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_status(write_run(tmp_path / "run", "finished"), is_json=False)
    out = capsys.readouterr().out
    for row in ("l2 +0.0100", "val/loss +0.5000", "test/loss +0.6000", "metrics +of epoch 2"):
        assert re.search(row, out)


def test_metrics_without_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "stopped")
    folder.metrics.unlink()
    found = dict(outcomes([folder]))
    assert "metrics_epoch" not in found
    assert found["val/loss"] == [0.7]

"""The terminal: what a narrow one leaves out, and the table of a sweep."""

import re
from pathlib import Path

import pytest

from lockstep.callbacks.console import COLUMNS, EPOCH_WIDTH, columns_for
from lockstep.run_folder import EXIT_STOPPED, RunFolder
from lockstep.sweep import Sweep


@pytest.mark.parametrize("width", range(1, 141))
def test_a_line_fits_its_terminal_and_keeps_the_validation_accuracy(width: int) -> None:
    shown = columns_for(width)
    assert EPOCH_WIDTH + sum(wide for *_, wide in shown) <= max(width, EPOCH_WIDTH + 10)
    assert "val/accuracy" in [name for name, *_ in shown]
    assert [column for column in COLUMNS if column in shown] == list(shown)


def test_eighty_letters_show_everything() -> None:
    assert columns_for(80) == COLUMNS


def finished(path: Path, best: float) -> RunFolder:
    path.mkdir()
    folder = RunFolder(path)
    folder.write_summary({"best": best, "test_accuracy": 0.9, "training_s": 75.0})
    return folder


def test_the_table_of_a_sweep_shows_what_differs_and_how_each_job_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep(num_jobs=4)
    sweep.end(["model.width=8", "seed=0"], finished(tmp_path / "0", 0.91), 0)
    (tmp_path / "1").mkdir()
    sweep.end(["model.width=8", "seed=1"], RunFolder(tmp_path / "1"), 1)
    (tmp_path / "2").mkdir()
    sweep.end(["model.width=8", "seed=2"], RunFolder(tmp_path / "2"), EXIT_STOPPED)
    sweep.show()
    text = capsys.readouterr().out
    assert "Sweep: 3 of 4 jobs" in text
    rows = [re.split(r"  +", line.strip()) for line in text.splitlines()[-3:]]
    assert rows == [
        ["0", "seed=0", "finished", "0.9100", "0.9000", "1:15"],
        ["1", "seed=1", "failed", "-", "-", "-"],
        ["2", "seed=2", "stopped", "-", "-", "-"],
    ]
    assert [folder.path.name for folder in sweep.failed] == ["1"]


def test_a_sweeper_that_proposes_jobs_as_it_goes_names_no_total(capsys: pytest.CaptureFixture[str]) -> None:
    Sweep(num_jobs=1).begin(4, ["optimizer.lr=[1]"], is_silent=False)
    assert capsys.readouterr().out == "\nJob 4: optimizer.lr=[1]\n"

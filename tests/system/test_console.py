"""The console: columns of a narrow terminal, and progress inside a long epoch."""

import io
import re
import shutil
from pathlib import Path

import pytest

from lockstep.callbacks.console import EPOCH_WIDTH, columns_for, live_line
from lockstep.runs.folder import EXIT_STOPPED
from lockstep.system.terminal import Terminal
from tests.support.harness import ROOT, SMALL, wait_until
from tests.support.screens import on_terminal
from tests.support.trainings import training

METRICS = ("train/loss", "train/accuracy", "val/loss", "val/accuracy")


def test_a_narrow_terminal_has_as_many_columns_as_fit() -> None:
    names = [name for name, *_ in columns_for(80, METRICS)]
    assert names == [*METRICS, "images/s", "time", "left"]
    shown = columns_for(40, METRICS)
    assert [name for name, *_ in shown] == [*METRICS[:2]]
    assert EPOCH_WIDTH + sum(wide for *_, wide in shown) <= 40


@pytest.mark.parametrize(("width", "rest"), [(80, "step 120/5000  6:40 left  612 images/s"), (40, "step 120/5000")])
def test_the_live_line_is_cropped_to_the_terminal(width: int, rest: str) -> None:
    out = Terminal(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    facts = ["step 120/5000", "6:40 left", "612 images/s", "1:08:00 in total"]
    out.print(live_line(width, "1/10", 0.5, facts))
    (line,) = out.file.getvalue().splitlines()
    assert re.match(rf" +1/10  ━+╸? +{rest}", line)
    assert len(line) <= width


# -- a long epoch ------------------------------------------------------------------------------------------------------

# five thousand batches; the log has its first line after a tenth of a second, then one every second
LONG = (
    *(text for text in SMALL if not text.startswith(("model.", "data.train_size", "trainer.log_every"))),
    *(f"~model.{name}" for name in ("width", "stem", "shortcut_norm", "bias", "dropout", "init")),
    "+model.hidden=2",
    "data.train_size=80000",
    "+callbacks.impatient._target_=tests.support.callbacks.Impatient",
)


@pytest.mark.full
@pytest.mark.processes
def test_rank_0_prints_speed_and_time_left_inside_the_first_epoch(tmp_path: Path) -> None:
    line = re.compile(r"^ {6}1/2  step (\d+)/5000, [\d:. s]+ left, [\d,]+ images/s, [\d:. s]+ in total$", re.M)
    with training(tmp_path, *LONG, "model._target_=tests.support.networks.Slow", "trainer.devices=2") as run:

        def steps() -> list[int]:
            assert run.process.poll() is None, run.log.read_text()
            return [int(step) for step in line.findall(run.log.read_text())]

        wait_until(lambda: len(steps()) >= 2, "two lines inside the epoch")
        # which is written once a second
        wait_until(lambda: run.folder.read_status()["epoch_remaining_s"] is not None, "the status of a later step")
        status = run.folder.read_status()
        assert status["epoch"] == 1
        assert status["remaining_s"] > status["epoch_remaining_s"] > 0
        assert status["images_per_s"] > 0
        assert steps() == sorted(set(steps()))
        run.folder.request_stop("seen enough")
        assert run.exit_code() == EXIT_STOPPED
        assert all("images/s" not in path.read_text() for path in run.folder.path.glob("rank*.log"))


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_a_log_reports_that_the_first_step_compiles(tmp_path: Path) -> None:
    line = re.compile(r"^ {6}1/2  compiling the network, [\d:.]+( s)? so far$", re.M)
    with training(tmp_path, *LONG, "model._target_=tests.support.networks.Plain", "compile=true") as run:

        def has_printed(text: re.Pattern[str], count: int) -> bool:
            assert run.process.poll() is None, run.log.read_text()
            return len(text.findall(run.log.read_text())) >= count

        wait_until(lambda: has_printed(line, 1), "a line")
        assert run.folder.read_status()["reason"] in ("compiling the network", "")
        wait_until(lambda: has_printed(re.compile(r"images/s, \S+( s)? in total"), 1), "a line of the steps")
        wait_until(lambda: run.folder.read_status()["reason"] == "", "the status of a later step")


@pytest.mark.full
@pytest.mark.processes
def test_a_terminal_shows_the_time_left_in_a_live_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with on_terminal(80, "train", *LONG, "model._target_=tests.support.networks.Slow", PYTHONPATH=str(ROOT)) as shown:
        text = re.sub(r"\x1b\[[0-9;?]*\w", "", shown.wait_for(" in total"))
    assert re.search(r"1/2  \S*━?\S*  step \d+/5000  [\d:. s]+ left  \d+ images/s  [\d:.]+ in total", text)

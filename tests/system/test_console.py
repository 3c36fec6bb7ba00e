"""What a run says of itself: what a narrow terminal leaves out, and how far a long epoch is."""

import fcntl
import io
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from lockstep.callbacks.console import EPOCH_WIDTH, columns_for, live_line
from lockstep.runs.folder import EXIT_STOPPED
from lockstep.system.terminal import Terminal
from tests.support.harness import PATIENCE_S, SMALL, command, environ, wait_until
from tests.support.trainings import training

METRICS = ("train/loss", "train/accuracy", "val/loss", "val/accuracy")


def test_a_narrow_terminal_keeps_the_validation_accuracy() -> None:
    names = [name for name, *_ in columns_for(80, METRICS, "val/accuracy")]
    assert names == [*METRICS, "images/s", "time", "left"]
    shown = columns_for(40, METRICS, "val/accuracy")
    assert [name for name, *_ in shown] == ["train/loss", "val/accuracy"]
    assert EPOCH_WIDTH + sum(wide for *_, wide in shown) <= 40


WORDS = ["step 120/5000", "6:40 left", "612 images/s", "in all 1:08:00 left"]


@pytest.mark.parametrize(("width", "num_words"), [(140, 4), (80, 4), (40, 1)])
def test_the_live_line_keeps_what_counts_most(width: int, num_words: int) -> None:
    out = Terminal(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    out.print(live_line(width, "1/10", 0.5, WORDS))
    (line,) = out.file.getvalue().splitlines()
    assert re.fullmatch(rf" +1/10  ━+╸? +{'  '.join(WORDS[:num_words])} *", line)


# -- a long epoch ------------------------------------------------------------------------------------------------------

# five thousand batches, in a log that gets its first line after a tenth of a second, and then one every second
LONG = (
    *(text for text in SMALL if not text.startswith(("model.", "data.train_size", "trainer.log_every"))),
    *(f"~model.{name}" for name in ("width", "stem", "shortcut_norm", "bias", "dropout", "init")),
    "+model.hidden=2",
    "data.train_size=80000",
    "+callbacks.impatient._target_=tests.support.callbacks.Impatient",
)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [1, 2])
def test_speed_and_time_left_are_told_inside_the_first_epoch(tmp_path: Path, num_workers: int) -> None:
    # by rank 0 alone: a line has itself to itself
    line = re.compile(r"^ {6}1/2  step (\d+)/5000, [\d:. s]+ left, [\d,]+ images/s, in all [\d:. s]+ left$", re.M)
    with training(
        tmp_path, *LONG, "model._target_=tests.support.networks.Slow", f"trainer.devices={num_workers}"
    ) as run:

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


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_a_first_step_that_compiles_says_so_and_goes_on_to_say_it(tmp_path: Path) -> None:
    line = re.compile(r"^ {6}1/2  compiling the network, [\d:.]+( s)? so far$", re.M)
    with training(tmp_path, *LONG, "model._target_=tests.support.networks.Plain", "compile=true") as run:

        def has_said(text: re.Pattern[str], count: int) -> bool:
            assert run.process.poll() is None, run.log.read_text()
            return len(text.findall(run.log.read_text())) >= count

        wait_until(lambda: has_said(line, 2), "two lines")
        assert run.folder.read_status()["reason"] in ("compiling the network", "")
        wait_until(lambda: has_said(re.compile("images/s, in all"), 1), "a line of the steps")
        wait_until(lambda: run.folder.read_status()["reason"] == "", "the status of a later step")


@pytest.mark.processes
def test_a_terminal_shows_the_time_left_in_a_line_of_its_own(tmp_path: Path) -> None:
    us, them = pty.openpty()
    fcntl.ioctl(them, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    overrides = [*LONG, "model._target_=tests.support.networks.Slow"]
    kept = {name: value for name, value in environ().items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        command(*overrides), cwd=tmp_path, env={**kept, "TERM": "xterm-256color"}, stdout=them, stderr=them
    )
    os.close(them)
    text, deadline = "", time.monotonic() + PATIENCE_S
    shown = re.compile(r"1/2  \S*━?\S*  step \d+/5000  [\d:. s]+ left  \d+ images/s  in all [\d:.]+ left")
    try:
        while not shown.search(re.sub(r"\x1b\[[0-9;?]*\w", "", text)):
            assert time.monotonic() < deadline, text
            if select.select([us], [], [], 10)[0]:
                text += os.read(us, 65536).decode()
    finally:
        process.kill()
        process.wait()
        os.close(us)

"""`lockstep status`, `runs` and `compare`: their output, whose numbers are those of one epoch."""

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep import Run
from lockstep.monitoring.comparison import outcomes
from lockstep.runs.discovery import RunWatcher, all_runs
from lockstep.runs.files import write_rows
from lockstep.runs.folder import RunFolder
from tests.support import calls

HOST = socket.gethostname()
NOW = 1.7e9  # 2023-11-14
TRAINED: dict[str, Any] = {
    "state": "finished", "reason": "", "name": "digits_resnet18", "workers": 2,
    "device": "CPU, 1 thread each", "precision": "bfloat16", "host": HOST, "pid": 4242,
    "epoch": 4, "max_epochs": 10, "step": 312, "total_steps": 780, "percent": 40.0,
    "learning_rate": 0.0734, "epoch_s": 18.25, "elapsed_s": 72.4, "remaining_s": 109.6,
    "images_per_s": 1234.5, "best": 0.98125, "monitor": "val/accuracy",
    "metrics": {"train/loss": 0.5, "val/accuracy": 0.98},
}  # fmt: skip


def run(
    path: Path, *overrides: str, config: str = "seed: 0\n", started: float = NOW, **status: Any
) -> RunFolder:
    """Write a run folder as a training leaves it, with these facts changed.

    It has no status where its state is None.
    """
    path.mkdir(parents=True)
    folder = RunFolder(path)
    folder.config.write_text(config)
    folder.facts_file.write_text(json.dumps({"overrides": overrides, "inode": path.stat().st_ino}))
    folder.lock_file.touch()
    if status.get("state", "") is not None:
        status = TRAINED | {"started": started, "updated": time.time()} | status
        # not synced to the disk, which takes time
        (path / "status.json").write_text(json.dumps(status))
    os.utime(folder.config, (started, started))
    return folder


RESUME = """lockstep train 'resume="my run"'"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


class Said:
    """What a command wrote, and its exit code."""

    def __init__(self, done: "subprocess.CompletedProcess[str]") -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def lines(self) -> list[list[str]]:
        """Cells of the lines of a table in a pipe, without the heads."""
        return [re.split("  +", line) for line in self.out.splitlines()[1:]]

    @property
    def rows(self) -> dict[str, str]:
        """Name and value of the rows of a status."""
        return dict(
            re.split(r"  +", line, maxsplit=1) for line in self.out.splitlines() if "  " in line
        )


@pytest.fixture
def lockstep(tmp_path: Path) -> Any:
    return lambda *words: Said(calls.lockstep(tmp_path, *words))


def test_status_of_latest(tmp_path: Path, lockstep: Any) -> None:
    folder = run(tmp_path / "outputs" / "day" / "it", state="training", host="node07")
    (tmp_path / "outputs" / "latest").symlink_to("day/it")
    expected = {
        "state": "training",
        "progress": "40.0 %",
        "epoch": "4 of 10, step 312 of 780",
        "best": "val/accuracy 0.9812",
        "workers": "2 x CPU, 1 thread each",
        "process": "pid 4242 on node07",
        "run folder": "outputs/day/it",
        "stop": "lockstep stop outputs/day/it",
    }
    assert lockstep("status").rows.items() >= expected.items()
    assert json.loads(lockstep("status", "--json").out)["path"] == str(folder.path)


@pytest.mark.parametrize(
    ("states", "name", "words"),
    [
        (("starting", "training", "validating", "testing"), "stop", "lockstep stop 'my run'"),
        (("stopping",), "then resume", RESUME),
        (("finished",), "evaluate", "lockstep eval 'my run'"),
        (("stopped", "failed", "pruned", "no signal"), "try again", RESUME),
    ],
)
def test_status_next_command(
    tmp_path: Path, lockstep: Any, states: Sequence[str], name: str, words: str
) -> None:
    folder = run(tmp_path / "my run")
    for state in states:
        folder.write_status(**TRAINED | {"state": state, "host": "another machine"})
        assert lockstep("status", "my run").rows[name] == words


def test_status_missing_or_broken(tmp_path: Path, lockstep: Any) -> None:
    folder = run(tmp_path / "it", state=None)
    rows = lockstep("status", "it").rows
    assert rows == {"state": "not started", "run folder": "it", "start": "lockstep train resume=it"}
    folder.status_file.write_text("{")
    assert lockstep("status", "it").rows["state"] == "broken"


def test_status_reason(tmp_path: Path, lockstep: Any) -> None:
    folder = run(tmp_path / "it")
    folder.write_status(state="failed", reason="ZeroDivisionError: \x1b[31mx")
    folder.record_failure("x")
    rows = lockstep("status", "it").rows
    assert (rows["reason"], rows["failure"]) == ("ZeroDivisionError:  [31mx", "it/failure.txt")


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((), "bcda"),  # without a status: made when its configuration was written
        (("--sort=started",), "adcb"),
        (("--sort=-run",), "dcba"),
        (("--sort=s/epoch",), "abcd"),
        (("--sort=best",), "cabd"),  # without a value: last in either direction
        (("--sort=-best",), "bacd"),
        (("--sort=optimizer.lr",), "abcd"),  # nobody typed it for the last two
        (("--sort=-optimizer.lr",), "bacd"),
        (("--sort=model.width",), "bcad"),  # 8 before 16; the newest of equal ones first
        (("--sort=val/accuracy",), "cbad"),
        (("--sort=device",), "bacd"),
    ],
)
def test_runs_sorted(tmp_path: Path, lockstep: Any, order: tuple[str, ...], expected: str) -> None:
    root = tmp_path / "outputs"
    run(
        root / "day" / "10_a",
        "model.width=8",
        "optimizer.lr=0.1",
        started=NOW,
        best=0.5,
        epoch_s=2.0,
    )
    run(
        root / "day" / "11_b",
        "model.width=8",
        "optimizer.lr=0.2",
        started=NOW + 9,
        best=0.75,
        state="failed",
    )
    c = {
        "state": "stopped",
        "device": "NVIDIA H100",
        "epoch": 2,
        "best": 0.25,
        "metrics": {"val/accuracy": 0.25},
    }
    run(root / "day" / "12_c", "model.width=8", "seed=3", started=NOW + 5, **c)
    run(root / "day" / "13_d", "model.width=16", state=None, started=NOW + 1)
    (root / "latest").symlink_to("day/11_b")
    lines = lockstep("runs", *order).lines
    assert "".join(line[1][-1] for line in lines) == expected


def test_runs_empty_or_missing_folder(tmp_path: Path, lockstep: Any) -> None:
    said = lockstep("runs")
    assert (said.code, said.out) == (0, "")
    said = lockstep("runs", "nowhere")
    assert (said.code, "nowhere" in said.err) == (2, True)


def test_runs_control_characters(tmp_path: Path, lockstep: Any) -> None:
    run(tmp_path / "outputs" / os.fsdecode(b"a\x1b[2J\tb\nc\xe9"), "x=\u202e1", name="\x1b]0;x\x07")
    run(tmp_path / "outputs" / "b")
    lines = lockstep("runs").lines
    assert {(line[1], line[3]) for line in lines} == {("a [2J b c", "x= 1"), ("b", "-")}


@pytest.fixture
def two(tmp_path: Path) -> tuple[RunFolder, RunFolder]:
    text = "seed: {}\noptimizer:\n  lr: {}\n  betas: [0.9, {}]\nmodel: {{_target_: M, width: 8}}\n"
    text += "logger: {{wandb: {{api_key: {}}}}}\n"
    a = run(
        tmp_path / "a",
        config=text.format(0, 0.1, 0.99, "http://x/token"),
        metrics={"val/loss": 0.5, "test/loss": 9},
    )
    b = run(
        tmp_path / "b",
        config=text.format(0, 1e-4, 0.95, "null") + "extra: true\n",
        state="stopped",
        best=0.5,
    )
    a.write_summary({"test_accuracy": 0.75, "test_loss": 1, "epochs": 4})
    return a, b


def test_compare_settings_and_results(two: Any, lockstep: Any) -> None:
    said = lockstep("compare", "a", "b")
    assert said.code == 0
    assert "token" not in said.out
    rows = {line.split()[0]: re.split("  +", line)[1:] for line in said.out.splitlines() if line}
    expected = {
        "optimizer.lr": ["0.1", "0.0001"],
        "optimizer.betas": ["[0.9,0.99]", "[0.9,0.95]"],
        "logger.wandb.api_key": ["***", "null"],
        "extra": ["null", "true"],
        "state": ["finished", "stopped"],
        "val/loss": ["0.5000", "-"],
        "test/accuracy": ["0.7500", "-"],
        "test/loss": ["1", "-"],  # of the summary
    }
    assert rows.items() >= expected.items()
    assert "seed" not in rows


@pytest.mark.parametrize(
    "text",
    ["a: [\n", "- 1\n", "x: [{? [1, 2]: 3}]\n", "a: " + "[" * 5000 + "]" * 5000 + "\n"],
    ids=range(4),
)
def test_compare_damaged_configuration(two: Any, lockstep: Any, text: str) -> None:
    two[1].config.write_text(text)
    said = lockstep("compare", "a", "b")
    assert (said.code, len(said.err.splitlines())) == (2, 1)
    assert "b/config.yaml" in said.err


@pytest.mark.parametrize(
    ("words", "error"), [(("a", "nowhere"), "nowhere"), (("a",), "two or more")]
)
def test_compare_errors(two: Any, lockstep: Any, words: tuple[str, ...], error: str) -> None:
    said = lockstep("compare", *words)
    assert (said.code, said.out) == (2, "")
    assert error in said.err


# -- the numbers are those of one epoch ---------------


@pytest.mark.parametrize(
    ("state", "epoch", "l2", "loss"), [("finished", 2, 1e-2, 0.5), ("stopped", 3, 1e-3, 0.7)]
)
def test_metrics_of_one_epoch(
    tmp_path: Path, state: str, epoch: int, l2: float, loss: float
) -> None:
    """Those of a probe whose second epoch of three was the best one."""
    metrics = {"l2": 1e-3, "test/loss": 0.6}
    if state != "finished":  # the last epoch of a finished run may have no validation
        metrics["val/loss"] = 0.7
    best: Any = {"monitor": "val/loss", "mode": "min", "best": 0.5}
    folder = run(tmp_path / "run", state=state, epoch=3, max_epochs=3, metrics=metrics, **best)
    losses = enumerate((0.9, 0.5, 0.7), 1)
    write_rows(
        folder.metrics,
        [{"epoch": n, "step": n, "l2": 10.0**-n, "val/loss": value} for n, value in losses],
    )
    if state == "finished":
        folder.write_summary({"best": 0.5, "test_loss": 0.6})
    compared = dict(outcomes([folder]))
    assert (compared["metrics_epoch"], compared["l2"], compared["val/loss"]) == (
        [epoch],
        [l2],
        [loss],
    )
    (listed,) = all_runs(RunWatcher(tmp_path, scan_every_s=0.0))
    assert (listed.value("metrics_epoch"), listed.value("l2")) == (epoch, l2)
    assert (Run(folder.path)["metrics_epoch"], Run(folder.path)["l2"]) == (epoch, l2)

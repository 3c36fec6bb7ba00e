"""The commands `lockstep` and `python train.py`: evaluate, predict, watch, stop, and report errors."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.metrics import accuracy_score

from lockstep.data.sources.builtin import digits
from lockstep.runs.folder import RunFolder
from tests.support import commands
from tests.support.harness import ROOT, command

pytestmark = pytest.mark.processes


WRONG = ("train", "--config-dir", str(ROOT / "tests/wrong_files"))


def lockstep(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    tool = os.fspath(Path(sys.executable).parent / "lockstep")
    return commands.run([tool, *arguments], cwd)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Two epochs of the default data set, by two processes."""
    cwd = tmp_path_factory.mktemp("trained")
    overrides = ("model.width=8", "trainer.max_epochs=2", "trainer.devices=2", "strategy=cpu")
    done = commands.run(command(*overrides), cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    return RunFolder((cwd / "outputs" / "latest").resolve())


def cwd_of(folder: RunFolder) -> Path:
    return folder.path.parents[2]


def test_a_run_leaves_all_its_files_and_no_other(trained: RunFolder) -> None:
    names = {path.name.partition(".tfevents")[0] for path in trained.path.iterdir()} - {".lock"}
    assert names == {
        "config.yaml", "run.json", "status.json", "metrics.csv",
        "images.json.gz", "summary.json", "checkpoints", "events.out", "validation", "test", "pictures",
    }  # fmt: skip
    assert {path.name for path in trained.checkpoints.iterdir()} == {"best.ckpt", "last.ckpt"}
    assert [row["epoch"] for row in trained.read_metrics()] == ["1", "2"]


def test_another_number_of_workers_evaluates_the_same(trained: RunFolder) -> None:
    done = lockstep(cwd_of(trained), "eval", "latest", "--devices", "3", "--checkpoint", "best", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["images"] == 359
    assert result["metrics"]["accuracy"] == pytest.approx(trained.read_summary()["test_accuracy"], abs=5e-7)


@pytest.mark.parametrize("precision", ["tf32", pytest.param("float16", marks=pytest.mark.full)])
def test_a_run_in_a_precision_of_gpus_is_evaluated_without_one(
    trained: RunFolder, tmp_path: Path, precision: str
) -> None:
    folder = RunFolder(shutil.copytree(trained.path, tmp_path / "run"))
    folder.claim()
    text = folder.config.read_text()
    folder.config.write_text(text.replace("precision: auto", f"precision: {precision}"))
    assert folder.config.read_text() != text
    done = lockstep(cwd_of(trained), "eval", str(folder.path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_predictions_of_a_split_are_in_order_and_agree_with_the_evaluation(trained: RunFolder) -> None:
    done = lockstep(cwd_of(trained), "predict", "latest", "test", "--output", "out/test.csv", "--devices", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(csv.DictReader((cwd_of(trained) / "out/test.csv").read_text().splitlines()))
    truth = digits(val_fraction=0.1, test_fraction=0.2, split_seed=0).test
    assert [row["file"] for row in rows] == list(truth.names)
    accuracy = accuracy_score(truth.targets, [int(row["class"]) for row in rows])
    assert accuracy == pytest.approx(trained.read_summary()["test_accuracy"], abs=1e-7)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["stop", "latest"], "is not running: finished"),
        (["eval", "nowhere"], "nowhere is not a run folder"),
        (["train", "resume=outputs/latest"], "is finished: set trainer.max_epochs above 2"),
        ([*WRONG, "experiment=unknown_key"], "config error: trainer.max_epoch"),
        ([*WRONG, "model=unknown_parameter"], "config error: model.widht"),
        ([*WRONG, "experiment=rule_between_keys"], "config error: trainer.accumulate_grad_batches"),
    ],
)
def test_command_refused(trained: RunFolder, words: list[str], part: str) -> None:
    done = lockstep(cwd_of(trained), *words)
    assert (done.returncode, part in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
    assert not trained.stop_flag.exists()


TRIED = ["stop", "eval", "predict", "export"]  # above, in test_pages.py and test_project.py
COMMANDS: dict[str, list[str]] = {
    "train": ["--cfg", "job"], "new": ["flowers"], "benchmark": ["--help"], "verify": ["--help"],
    "model": ["--depth", "1"], "runs": ["RUNS"], "compare": ["RUN", "RUN"], "jobs": ["list", "--folder", "RUNS"],
    "board": ["--help"], "data": ["check"], "machine": [], "status": ["RUN"], "labels": ["RUN"], "schema": [],
    "embed": ["RUN", "test", "--output", "digits.npy"],
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_works_as_installed_from_any_folder(trained: RunFolder, tmp_path: Path, name: str) -> None:
    paths = {"RUN": str(trained.path), "RUNS": str(cwd_of(trained) / "outputs")}
    done = lockstep(tmp_path, name, *(paths.get(word, word) for word in COMMANDS[name]))
    assert done.returncode == 0, done.stderr


def test_no_command_is_left_out_of_those_that_are_tried(tmp_path: Path) -> None:
    names = re.findall(r"^    (\w+)\b", lockstep(tmp_path, "--help").stdout, re.MULTILINE)
    assert sorted(names) == sorted([*COMMANDS, *TRIED])

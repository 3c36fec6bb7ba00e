"""`lockstep` and `python train.py` evaluate, predict, show progress, stop, and report errors."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sklearn.metrics import accuracy_score

from lockstep.data.sources.builtin import digits
from lockstep.runs.folder import RunFolder
from lockstep.system.trees import at
from tests.support import commands
from tests.support.harness import ROOT, command, environ

pytestmark = pytest.mark.processes


WRONG = ("train", "--config-dir", str(ROOT / "tests/wrong_files"))


def lockstep(cwd: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the installed command, which must exit with `code`."""
    done = commands.run([os.fspath(Path(sys.executable).parent / "lockstep"), *arguments], cwd)
    assert done.returncode == code, done.stdout + done.stderr
    return done


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


def test_files_of_run(trained: RunFolder) -> None:
    names = {path.name.partition(".tfevents")[0] for path in trained.path.iterdir()} - {".lock"}
    assert names == {
        "config.yaml", "run.json", "status.json", "metrics.csv", "images.json.gz", "summary.json",
        "checkpoints", "events.out", "validation", "test", "pictures",
    }  # fmt: skip
    assert {path.name for path in trained.checkpoints.iterdir()} == {"best.ckpt", "last.ckpt"}


@pytest.mark.full
@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_eval_in_precision_of_gpus(trained: RunFolder, tmp_path: Path, precision: str) -> None:
    folder = RunFolder(shutil.copytree(trained.path, tmp_path / "run"))
    folder.claim()
    text = folder.config.read_text()
    folder.config.write_text(text.replace("precision: auto", f"precision: {precision}"))
    assert folder.config.read_text() != text
    lockstep(cwd_of(trained), "eval", str(folder.path))


def test_predictions_of_split(trained: RunFolder) -> None:
    lockstep(
        cwd_of(trained), "predict", "latest", "test", "--output", "out/test.csv", "--devices", "2"
    )
    rows = commands.rows_of(cwd_of(trained) / "out/test.csv")
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
    done = lockstep(cwd_of(trained), *words, code=2)
    assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert not trained.stop_flag.exists()


# above, in test_pages.py and test_project.py; labels and embed: test_labels.py, test_inference.py
TRIED = ["stop", "eval", "predict", "export"]
COMMANDS: dict[str, list[str]] = {
    "train": ["--cfg", "job"], "new": ["flowers"], "benchmark": ["--help"], "verify": ["--help"],
    "model": ["--depth", "1"], "runs": ["RUNS"], "compare": ["RUN", "RUN"],
    "jobs": ["list", "--folder", "RUNS"], "board": ["--help"], "data": ["check"], "machine": [],
    "status": ["RUN"], "labels": ["--help"], "schema": [], "embed": ["--help"],
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_installed_command(trained: RunFolder, tmp_path: Path, name: str) -> None:
    paths = {"RUN": str(trained.path), "RUNS": str(cwd_of(trained) / "outputs")}
    lockstep(tmp_path, name, *(paths.get(word, word) for word in COMMANDS[name]))


def test_commands_complete(tmp_path: Path) -> None:
    names = re.findall(r"^    (\w+)\b", lockstep(tmp_path, "--help").stdout, re.MULTILINE)
    assert sorted(names) == sorted([*COMMANDS, *TRIED])


# -- every kind of override ------------------------------------------------------------------------

FILES = {
    "conf/other.yaml": "defaults:\n  - lockstep\n  - _self_\nglobal_batch_size: 16\n",
    "conf/model/tiny.yaml": "defaults:\n  - resnet18\nwidth: 2\n",
    "conf/experiment/small.yaml": "# @package _global_\ndefaults:\n  - override /model: tiny\n",
    "more/data/few.yaml": "_target_: lockstep.data.synthetic\nnum_classes: 2\nchannels: 1\n"
    "image_size: 8\ntrain_size: 8\nval_size: 8\ntest_size: 8\nseed: 0\nmemory: auto\n",
}


@pytest.mark.full
def test_overrides_of_all_types(tmp_path: Path) -> None:
    """In a project with other files and options; its config.yaml: unit/config/test_compose.py."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    typed = (
        *("--config-name", "other", "--config-dir", "more", "experiment=small", "data=few"),
        *("strategy=cpu", "trainer.max_epochs=1", "callbacks.pictures=null", "logger=none"),
        *("model.stem=imagenet", "hydra.run.dir=here", "~callbacks.timer"),
        *("trainer.worker_weights=[1]", "+callbacks.last.verbose=true", "++optimizer.lr=0.2"),
        *("trainer.max_time_s=null", "seed=7", "eval_batch_size=${global_batch_size}"),
        *("augment={flip:true}", "name=${oc.env:MY_NAME}"),
    )
    line = [sys.executable, "-m", "lockstep", "train", *typed]
    done = commands.run(line, tmp_path, {**environ(), "MY_NAME": "a+b"})
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((tmp_path / "here" / "config.yaml").read_text())
    expected = {
        **{"seed": 7, "eval_batch_size": 16, "name": "a+b"},  # values, not interpolations
        **{"model.width": 2, "model.stem": "imagenet", "augment.flip": True, "augment.cutout": 0},
        **{"trainer.worker_weights": [1], "trainer.max_time_s": None},
        **{"optimizer.lr": 0.2, "callbacks.last.verbose": True},
        **{"global_batch_size": 16, "data._target_": "lockstep.data.synthetic"},
    }
    assert {key: at(config, key.split(".")) for key in expected} == expected
    assert "timer" not in config["callbacks"]

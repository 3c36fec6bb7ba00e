"""Missing data is reported before anything starts."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lockstep.cli import sweep
from lockstep.config import overrides
from lockstep.config.checks import data_presence, validation
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support.harness import PATIENCE_S, ROOT, SMALL, command, environ, write_run
from tests.support.image_files import write_folder, write_image, write_list


def check(*overrides: str) -> None:
    data_presence.check(validation.check_config(compose.compose_config(overrides)).data)


def test_data_that_exists_is_no_error(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", count=4)
    check("data=digits")
    check("data=synthetic")
    check("data=image_folder", f"data.root={images}")
    check("data=image_folder", f"data.root=file://{images}")
    check("data=cifar10", f"data.root={tmp_path / 'downloads'}")
    (tmp_path / "cifar-10-batches-py").mkdir()
    check("data=cifar10", "data.download=false", f"data.root={tmp_path}")


CIFAR10 = ("data=cifar10", "data.download=false")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=image_folder", "data.root=no"], "data.root=no does not exist"),
        ([*CIFAR10, "data.root=no"], "data.root=no does not exist"),
        (["data=fashion_mnist", "data.download=false", "data.root=no"], "data.root=no does not exist"),
        (["data=image_folder", "data.root=empty"], "no class folders"),
        ([*CIFAR10, "data.root=empty"], "cifar-10-batches-py"),
        (["data=image_folder", "data.root=file"], "is a file"),
    ],
)
def test_data_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("file").touch()
    with pytest.raises(ConfigError, match=message):
        check(*overrides)


@pytest.mark.parametrize("setting", ["target_columns=[species]", "group_column=patient"])
def test_a_wrong_column_is_refused_before_a_sweep(tmp_path: Path, setting: str) -> None:
    rows = [{"path": write_image(tmp_path / f"{i}.png").name, "label": "ab"[i % 2]} for i in range(6)]
    file = write_list(tmp_path / "list.csv", rows)
    texts = ["data=list", f"data.file={file}", f"data.{setting}", "seed=0,1"]
    configs = overrides.plan(texts, is_multirun=True).configs
    with pytest.raises(ConfigError, match=f"data.{setting.partition('=')[0]} is '"):
        sweep.check_inputs(configs)


# -- every command -----------------------------------------------------------------------------------------------------


def run(cwd: Path, words: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, cwd=cwd, env=environ(), capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("more", [[], ["-m", "seed=0,1"]])
def test_missing_data_ends_a_command_before_torch_is_imported_and_leaves_nothing(
    tmp_path: Path, more: list[str]
) -> None:
    words = command(*more, "data=image_folder", "data.root=nowhere")
    done = run(tmp_path, [words[0], "-X", "importtime", *words[1:]])
    assert done.returncode == EXIT_CONFIG, done.stderr
    assert "config error: data.root=nowhere does not exist" in done.stderr
    assert "| torch\n" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
@pytest.mark.processes
def test_missing_data_leaves_a_resumed_run_unchanged(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", count=8)
    small = [setting for setting in SMALL if not setting.startswith(("data", "augment"))]
    folder = write_run(tmp_path / "run", [*small, "data=image_folder", f"data.root={images}"])
    folder.write_status(state="stopped", reason="time limit")
    folder.best_checkpoint.parent.mkdir()
    for path in (folder.best_checkpoint, folder.last_checkpoint):
        torch.save({}, path)
    shutil.rmtree(images)
    tool = str(Path(sys.executable).parent / "lockstep")
    for words in (
        command(f"resume={folder.path}"),
        [tool, "eval", str(folder.path)],
        [tool, "predict", str(folder.path), "val", "--output", "out.csv"],
    ):
        done = run(ROOT, words)
        assert done.returncode == EXIT_CONFIG
        assert done.stderr.startswith(f"config error: data.root={images} does not exist")
        assert RunFolder(folder.path).read_status()["state"] == "stopped"

"""Missing data is reported before anything starts."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def data(*texts: str) -> Any:
    return validation.check_config(compose.compose_config(texts)).data


def error(*texts: str) -> str:
    with pytest.raises(ConfigError) as caught:
        data_presence.check(data(*texts))
    (found,) = str(caught.value).splitlines()
    return found


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_data_that_exists_is_no_error(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", count=4)
    for texts in (
        ["data=digits"],
        ["data=synthetic"],
        ["data=image_folder", f"data.root={images}"],
        ["data=image_folder", f"data.root=file://{images}"],
        ["data=cifar10", f"data.root={tmp_path / 'downloads'}"],
    ):
        data_presence.check(data(*texts))
    (tmp_path / "cifar-10-batches-py").mkdir()
    data_presence.check(data("data=cifar10", "data.download=false", f"data.root={tmp_path}"))


@pytest.mark.parametrize("choice", ["image_folder", "cifar10", "fashion_mnist"])
def test_a_missing_folder_is_named_with_its_setting(tmp_path: Path, choice: str) -> None:
    more = [] if choice == "image_folder" else ["data.download=false"]
    assert f"data.root={tmp_path / 'no'} does not exist" in error(
        f"data={choice}", f"data.root={tmp_path / 'no'}", *more
    )


def test_a_folder_with_other_content_is_reported_with_the_expected_content(tmp_path: Path) -> None:
    root = empty(tmp_path / "empty")
    assert "no class folders" in error("data=image_folder", f"data.root={root}")
    assert "cifar-10-batches-py" in error("data=cifar10", "data.download=false", f"data.root={root}")
    (root / "file").touch()
    assert "is a file" in error("data=image_folder", f"data.root={root / 'file'}")


@pytest.mark.parametrize("setting", ["target_columns=[species]", "group_column=patient"])
def test_a_wrong_column_is_refused_before_a_sweep(tmp_path: Path, setting: str) -> None:
    rows = [{"path": write_image(tmp_path / f"{i}.png").name, "label": "ab"[i % 2]} for i in range(6)]
    file = write_list(tmp_path / "list.csv", rows)
    texts = ["data=list", f"data.file={file}", f"data.{setting}", "seed=0,1"]
    configs = overrides.plan(texts, is_multirun=True).configs
    with pytest.raises(ConfigError, match=f"data.{setting.partition('=')[0]} is '") as caught:
        sweep.check_inputs(configs)
    assert len(caught.value.errors) == 1


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
    told = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == EXIT_CONFIG, done.stderr
    assert len(told) == 2, told
    assert told[0].startswith("config error: data.root=nowhere does not exist")
    assert not any(line.endswith("| torch") for line in done.stderr.splitlines())
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

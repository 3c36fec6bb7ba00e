"""Missing data is told before anything starts, in the words of those who read it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.config import compose, presence, signatures, storage, validation
from lockstep.config.errors import ConfigError
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support.harness import PATIENCE_S, ROOT, SMALL, command, environ, write_run
from tests.support.image_files import write_folder


def data(*overrides: str) -> Any:
    return validation.checked(compose.composed(overrides)).data


def error(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        presence.check(data(*overrides))
    (found,) = caught.value.errors
    return found


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_data_that_is_there_is_no_fault(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", count=4)
    for overrides in (
        ["data=digits"],
        ["data=synthetic"],
        ["data=image_folder", f"data.root={images}"],
        ["data=image_folder", f"data.root=file://{images}"],
        ["data=cifar10", f"data.root={tmp_path / 'downloads'}"],
    ):
        presence.check(data(*overrides))
    (tmp_path / "cifar-10-batches-py").mkdir()
    presence.check(data("data=cifar10", "data.download=false", f"data.root={tmp_path}"))


@pytest.mark.parametrize("choice", ["image_folder", "cifar10", "fashion_mnist"])
def test_a_missing_folder_is_named_with_its_setting(tmp_path: Path, choice: str) -> None:
    more = [] if choice == "image_folder" else ["data.download=false"]
    assert f"data.root={tmp_path / 'no'} does not exist" in error(
        f"data={choice}", f"data.root={tmp_path / 'no'}", *more
    )


def test_a_folder_that_holds_something_else_says_what_was_looked_for(tmp_path: Path) -> None:
    root = empty(tmp_path / "empty")
    assert "no class folders" in error("data=image_folder", f"data.root={root}")
    assert "cifar-10-batches-py" in error("data=cifar10", "data.download=false", f"data.root={root}")
    (root / "file").touch()
    assert "is a file" in error("data=cifar10", f"data.root={root / 'file'}")
    assert "cannot be read" in error("data=image_folder", f"data.root={root / 'file'}")


@pytest.mark.parametrize(
    "url", ["file:///nonexistent", "zip://::file:///nonexistent.zip", "http://127.0.0.1:9/images/"]
)
def test_a_url_where_nothing_answers_is_named(url: str) -> None:
    found = error("data=image_folder", f"data.root='{url}'")
    assert found.startswith(f"data.root={url} cannot be listed")
    assert "correct the URL" in found


def test_a_source_of_the_users_own_is_asked_by_its_own_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_source.py").write_text("def load(*, place): ...\n")
    (tmp_path / "own_check.py").write_text(
        "def check(*, place):\n    raise FileNotFoundError(f'data.place={place} is empty: fill it.')\n"
    )
    section = {"_target_": "own_source.load", "place": "here", "memory": "auto"}
    tree = storage.to_tree(validation.checked(compose.composed([])))
    presence.check(validation.check_tree({**tree, "data": section}).data)
    checked = validation.check_tree({**tree, "data": {**section, "_check_": "own_check.check"}})
    assert checked.data.arguments() == {"place": "here"}
    with pytest.raises(ConfigError, match=r"data\.place=here is empty: fill it\."):
        presence.check(checked.data)


SOURCE = """
def load(*, place): ...
def check(*, place): ...
def other(*, far): ...
NO = 1
"""
CHECKS = """
import no_such_package_anywhere

def check(*, place): ...
"""


def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str, **more: str) -> list[str]:
    """The errors of a data source of one's own with this `_check_`."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "our_source.py").write_text(
        "def load(*, place): ...\ndef check(*, place): ...\ndef other(*, far): ...\nNO = 1\n"
    )
    (tmp_path / "our_checks.py").write_text(CHECKS)
    section = {"_target_": "our_source.load", "_check_": check, "place": "here", "memory": "auto", **more}
    tree = storage.to_tree(validation.checked(compose.composed([])))
    tree |= {"data": section}
    try:
        checked = validation.check_tree(tree)
        if found := signatures.errors([tree]):
            return found
        presence.check(checked.data)
    except ConfigError as error:
        return error.errors
    return []


@pytest.mark.parametrize(
    ("check", "errors"),
    [
        ("our_source.check", []),
        (
            "our_source.chek",
            ["data._check_=our_source.chek: 'our_source' has no 'chek': did you mean our_source.check?"],
        ),
        ("our_sauce.check", ["data._check_=our_sauce.check: there is no package 'our_sauce' here: correct the name"]),
        ("check", ["data._check_"]),
        ("our_source.NO", ["data._check_=our_source.NO: 'our_source.NO' is a int, not something to call"]),
        (
            "our_source.other",
            [
                "data.place is no parameter of our_source.other: data._check_ gets the parameters of data._target_",
                "data._check_=our_source.other needs far",
            ],
        ),
        (
            "our_checks.check",
            ["data._check_=our_checks.check cannot be imported: ModuleNotFoundError: No module named 'no_such_package"],
        ),
    ],
)
def test_a_check_that_cannot_be_called_is_a_fault_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str, errors: list[str]
) -> None:
    found = own(tmp_path, monkeypatch, check)
    assert len(found) == len(errors), found
    assert all(error.startswith(start) for error, start in zip(found, errors, strict=True)), found


def test_a_class_folder_whose_name_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", count=4)
    os.rename(next(images.iterdir()), os.fsencode(images) + b"/caf\xe9")
    found = error("data=image_folder", f"data.root={images}")
    assert "b'caf\\xe9'" in found
    assert "Rename" in found


# -- every command -----------------------------------------------------------------------------------------------------


def run(cwd: Path, words: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, cwd=cwd, env=environ(), capture_output=True, text=True, timeout=PATIENCE_S)


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


@pytest.mark.processes
def test_missing_data_leaves_a_run_that_goes_on_as_it_is(tmp_path: Path) -> None:
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


def test_a_benchmark_without_its_data_makes_no_folder(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lockstep", "benchmark", "data=image_folder", f"data.root={tmp_path / 'no'}"]
    done = subprocess.run(words, cwd=tmp_path, env=environ(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == EXIT_CONFIG, done.stderr
    assert f"data.root={tmp_path / 'no'} does not exist" in done.stderr
    assert list(tmp_path.iterdir()) == []

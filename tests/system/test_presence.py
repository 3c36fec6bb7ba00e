"""Missing data is reported before anything starts."""

import subprocess
from pathlib import Path

import pytest

from lockstep.config import overrides
from lockstep.config.checks import data_presence, validation
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError
from lockstep.runs.folder import EXIT_CONFIG
from lockstep.sweeps import start
from tests.support.harness import PATIENCE_S, command, environ
from tests.support.image_files import write_image, write_list


def check(*overrides: str) -> None:
    data_presence.check(validation.check_config(compose.compose_config(overrides)).data)


CIFAR10 = ("data=cifar10", "data.download=false")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=image_folder", "data.root=no"], "data.root=no does not exist"),
        ([*CIFAR10, "data.root=no"], "data.root=no does not exist"),
        (
            ["data=fashion_mnist", "data.download=false", "data.root=no"],
            "data.root=no does not exist",
        ),
        (["data=image_folder", "data.root=empty"], "no class folders"),
        ([*CIFAR10, "data.root=empty"], "cifar-10-batches-py"),
        (["data=image_folder", "data.root=file"], "is a file"),
    ],
)
def test_data_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("file").touch()
    with pytest.raises(ConfigError, match=message):
        check(*overrides)


@pytest.mark.parametrize("setting", ["target_columns=[species]", "group_column=patient"])
def test_wrong_column_of_sweep(tmp_path: Path, setting: str) -> None:
    rows = [
        {"path": write_image(tmp_path / f"{i}.png").name, "label": "ab"[i % 2]} for i in range(6)
    ]
    file = write_list(tmp_path / "list.csv", rows)
    texts = ["data=list", f"data.file={file}", f"data.{setting}", "seed=0,1"]
    configs = overrides.plan(texts, is_multirun=True).configs
    with pytest.raises(ConfigError, match=f"data.{setting.partition('=')[0]} is '"):
        start.check_inputs(configs)


# -- every command ---------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("more", [[], ["-m", "seed=0,1"]])
def test_missing_data_of_command(tmp_path: Path, more: list[str]) -> None:
    python, *words = command(*more, "data=image_folder", "data.root=nowhere")
    done = subprocess.run(
        [python, "-X", "importtime", *words],
        cwd=tmp_path,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == EXIT_CONFIG, done.stderr
    assert "config error: data.root=nowhere does not exist" in done.stderr
    assert "| torch\n" not in done.stderr
    assert list(tmp_path.iterdir()) == []

"""Typed overrides: values that Hydra's grammar refuses, folders, and one line for each mistake."""

import socket
from pathlib import Path

import pytest

from lockstep.assembly import checkpoints
from lockstep.assembly.run_parts import once_a_node
from lockstep.config import overrides
from lockstep.config.checks import data_presence
from lockstep.config.composing import typed_text
from lockstep.config.composing.compose import parse_override
from lockstep.config.errors import ConfigError
from lockstep.config.saved import config_file
from lockstep.runs import naming
from lockstep.system import hardware
from tests.support.composed import config_of
from tests.support.copies import section
from tests.support.image_files import write_folder


@pytest.mark.parametrize(
    "value",
    [
        "~/x",
        "my (old) photos",
        r"^[a-z]+_(\d{1,2})",
        r"[a-z]+_(\d+)",
        "it's",
        "a=b",
        r"a'(b)" + "\\",
    ],
)
def test_unparsable_value_as_text(value: str) -> None:
    override = parse_override(f"data.root={value}")
    assert override.value() == value
    assert parse_override(override.input_line or "").value() == value  # as it is saved


def test_folder_argument(tmp_path: Path) -> None:
    folder = tmp_path / "my (old) photos"
    folder.mkdir()
    texts = typed_text.hydra_overrides([str(folder), "seed=1"])
    assert texts == ["experiment=finetune", f'data.root="{folder}"', "seed=1"]
    assert typed_text.hydra_overrides(texts) == texts
    (config,) = overrides.plan(texts).configs
    assert (config.data.root, config.name) == (str(folder), "finetune")


@pytest.mark.parametrize(
    "text", ["experiment=probe", "data.root=x", "data=list", "resume=latest", "."]
)
def test_folder_and_contrary_settings(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"means experiment=finetune data.root=.*: remove it, or {text}$"
    ):
        typed_text.hydra_overrides([str(tmp_path), text])


@pytest.mark.parametrize("path", ["~/run", "$HOME/run"])
def test_home_in_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    assert naming.find(path).path == tmp_path / "run"
    with pytest.raises(ConfigError, match="checkpoint"):
        checkpoints.initial_checkpoint(path)
    network = ["model=torchvision", "model.name=resnet18", f"model.pretrained={path}/config.yaml"]
    (config,) = overrides.plan(["data=image_folder", f"data.root={path}", *network]).configs
    assert config.data.resolve_paths().root == str(tmp_path / "run")
    data_presence.check_weights(config)


ONE_DEVICE = "write strategy=single_device"


@pytest.mark.parametrize(
    ("texts", "num_gpus", "part"),
    [
        (["optimizer.lr=0.1("], 0, "optimizer.lr=0.1( must be float > 0"),
        (["data.classes=[a (b),c]"], 0, """write 'data.classes=["a (b)",c]'"""),
        (["optimizer lr=("], 0, "write setting=value"),
        (["device=cuda"], 0, "write strategy=cpu"),
        (["device=cuda"], 1, ONE_DEVICE),
        (["strategy=cuda"], 0, "write strategy=cpu"),
        (["strategy=cuda"], 1, ONE_DEVICE),
        (["trainer.devices=0,1"], 0, "write trainer.devices=[0,1], or add -m"),
        (["data=list", "data.file=x.csv", "task=regression"], 0, "set data.targets=numbers"),
        (["data=synthetic", "data.folds=3"], 0, "is not for this source, which has no folds"),
        (["experiment=finetun", "data.root=x"], 0, "did you mean finetune?"),
        (["-m", "trainer.accumulate_grad_batches=7", "global_batch_size=10,20,30"], 0, "=7"),
    ],
)
def test_single_error(
    monkeypatch: pytest.MonkeyPatch, texts: list[str], num_gpus: int, part: str
) -> None:
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: num_gpus)
    with pytest.raises(ConfigError) as caught:
        overrides.plan([text for text in texts if text != "-m"], is_multirun="-m" in texts)
    (error,) = caught.value.errors
    assert part in str(error)


def test_variable_in_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A variable is expanded where a path is used, and nowhere else."""
    monkeypatch.setenv("DISK", "/a disk")
    config = config_of(
        "data=image_folder",
        "data.root=$DISK/flowers",
        "data.cache=$DISK",
        "data.copy_to=data/$DISK/$DISK.5",
    )
    found = config.data.resolve_paths()
    assert (found.root, found.arguments()["cache"]) == ("/a disk/flowers", "/a disk")
    assert found.copy_to == "data//a disk//a disk.5"
    listed = config_of("data=list", "data.file='$DISK/x.csv'").data.resolve_paths()
    assert listed.arguments()["file"] == "/a disk/x.csv"
    assert config_file.to_tree(config)["data"]["root"] == "$DISK/flowers"
    plain = config_of("data=cifar10", "data.root='cost $5 or $'").data
    assert plain.resolve_paths() == plain


@pytest.mark.parametrize("value", [None, ""])
def test_unset_variable_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None
) -> None:
    monkeypatch.delenv("DISK", raising=False)
    if value is not None:
        monkeypatch.setenv("DISK", value)
    wanted = section(write_folder(tmp_path / "images", count=4), None, copy_to="$DISK/copies")
    for use in (
        lambda: data_presence.check(wanted),
        lambda: once_a_node(wanted, str, rank=0, local_rank=0, is_silent=True),
    ):
        with pytest.raises(
            ConfigError, match=rf"^data\.copy_to=\$DISK.* on {socket.gethostname()}: .*$"
        ):
            use()

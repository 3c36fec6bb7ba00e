"""Variables in the paths of the data are those of the machine that reads them."""

import socket
from pathlib import Path
from typing import Any

import pytest

from lockstep.assembly import staging
from lockstep.config.checks import data_presence, validation
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError
from lockstep.config.saved import config_file
from tests.support.copies import section
from tests.support.image_files import write_folder


def data(*overrides: str) -> Any:
    return validation.check_config(compose.compose_config(overrides)).data


def test_a_variable_is_expanded_where_a_path_is_used_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISK", "/a disk")
    config = validation.check_config(
        compose.compose_config(
            ["data=image_folder", "data.root=$DISK/flowers", "data.cache=$DISK", "data.copy_to=data/$DISK/$DISK.5"]
        )
    )
    found = config.data.resolve_paths()
    assert (found.root, found.arguments()["cache"]) == ("/a disk/flowers", "/a disk")
    assert found.copy_to == "data//a disk//a disk.5"
    assert data("data=list", "data.file='$DISK/x.csv'").resolve_paths().arguments()["file"] == "/a disk/x.csv"
    assert config_file.to_tree(config)["data"]["root"] == "$DISK/flowers"
    plain = data("data=cifar10", "data.root='cost $5 or $'")
    assert plain.resolve_paths() == plain


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_named_with_its_key_and_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None
) -> None:
    monkeypatch.delenv("DISK", raising=False)
    if value is not None:
        monkeypatch.setenv("DISK", value)
    wanted = section(write_folder(tmp_path / "images", count=4), None, copy_to="$DISK/copies")
    for use in (
        lambda: data_presence.check(wanted),
        lambda: staging.once_a_node(wanted, str, rank=0, local_rank=0, is_silent=True),
    ):
        with pytest.raises(ConfigError, match=rf"^data\.copy_to=\$DISK.* on {socket.gethostname()}: .*$"):
            use()

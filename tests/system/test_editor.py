"""Editors complete and check the files of conf/, by the language server that VS Code's YAML extension starts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.config.composing.compose import CONF
from lockstep.starter import project
from tests.support.language_server import SERVER, Editor, editor

pytestmark = [
    pytest.mark.full,
    pytest.mark.processes,
    pytest.mark.skipif(SERVER is None, reason="no yaml-language-server here; docs/testing.md installs it"),
]
MODEL = "# yaml-language-server: $schema=../lockstep.schema.json#/$defs/model\n"
EXPERIMENT = "# @package _global_\n# yaml-language-server: $schema=../lockstep.schema.json\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Editor]:
    with editor() as started:
        yield started


def test_files_of_conf_have_no_problems(server: Editor) -> None:
    found = {path: server.problems(path, path.read_text()) for path in sorted(CONF.rglob("*.yaml"))}
    assert {path: problems for path, problems in found.items() if problems} == {}


def test_keys_and_values_are_completed(server: Editor) -> None:
    assert "trainer" in server.completions(CONF / "experiment/new.yaml", f"{EXPERIMENT}tra")
    assert "max_epochs" in server.completions(CONF / "experiment/new.yaml", f"{EXPERIMENT}trainer:\n  max")
    values = server.completions(CONF / "experiment/new.yaml", f"{EXPERIMENT}trainer:\n  precision: ")
    assert {"auto", "bfloat16", "float16"} <= {*values}
    option = server.completions(CONF / "experiment/new.yaml", f"{EXPERIMENT}defaults:\n  - override /model: ")
    assert {"resnet18", "timm"} <= {*option}
    assert "shortcut_norm" in server.completions(CONF / "model/new.yaml", f"{MODEL}sho")
    assert {"small", "imagenet"} <= {*server.completions(CONF / "model/new.yaml", f"{MODEL}stem: ")}
    assert "lockstep.models.timm" in server.completions(CONF / "model/new.yaml", f"{MODEL}_target_: ")


def test_an_error_is_shown_in_its_line(server: Editor) -> None:
    text = f"{EXPERIMENT}trainer:\n  max_epoch: 3\n  precision: bf16\naugment:\n  rotation: 500\n"
    assert server.problems(CONF / "experiment/wrong.yaml", text) == [
        (4, "Property max_epoch is not allowed."),
        (5, 'Value is not accepted. Valid values: "auto", "bfloat16", "float16", "tf32", "float32", "float64".'),
        (7, "Value is above the maximum of 180."),
    ]
    text = f"{MODEL}_target_: lockstep.models.ResNet18\nwidht: 32\n"
    assert server.problems(CONF / "model/wrong.yaml", text) == [(3, "Property widht is not allowed.")]


def test_a_new_project_has_its_own_schema(server: Editor, tmp_path: Path) -> None:
    project.create(tmp_path / "roses")
    conf = tmp_path / "roses" / "conf"
    assert [server.problems(path, path.read_text()) for path in sorted(conf.rglob("*.yaml"))] == [[]] * 5
    ((_, message),) = server.problems(
        conf / "model" / "net.yaml", (conf / "model/net.yaml").read_text() + "_partial_: 3\n"
    )
    assert message == 'Incorrect type. Expected "boolean".'

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


def problems(server: Editor, conf: Path) -> dict[Path, list[tuple[int, str]]]:
    paths = sorted(conf.rglob("*.yaml"))
    return {path: found for path in paths if (found := server.problems(path.parent, path.read_text()))}


def test_files_of_conf_have_no_problems(server: Editor) -> None:
    assert problems(server, CONF) == {}


@pytest.mark.parametrize(
    ("group", "text", "expected"),
    [
        ("experiment", f"{EXPERIMENT}tra", {"trainer", "optimizer"}),
        ("experiment", f"{EXPERIMENT}trainer:\n  max", {"max_epochs", "max_time_s"}),
        ("experiment", f"{EXPERIMENT}trainer:\n  precision: ", {"auto", "bfloat16", "float16"}),
        ("experiment", f"{EXPERIMENT}defaults:\n  - override /model: ", {"resnet18", "timm"}),
        ("model", f"{MODEL}sho", {"shortcut_norm", "width"}),
        ("model", f"{MODEL}stem: ", {"small", "imagenet"}),
        ("model", f"{MODEL}_target_: ", {"lockstep.models.ResNet18", "lockstep.models.timm"}),
    ],
)
def test_keys_values_and_options_are_completed(server: Editor, group: str, text: str, expected: set[str]) -> None:
    assert expected <= {*server.completions(CONF / group, text)}


def test_an_error_is_shown_in_its_line(server: Editor) -> None:
    text = f"{EXPERIMENT}trainer:\n  max_epoch: 3\n  precision: bf16\naugment:\n  rotation: 500\n"
    assert server.problems(CONF / "experiment", text) == [
        (4, "Property max_epoch is not allowed."),
        (5, 'Value is not accepted. Valid values: "auto", "bfloat16", "float16", "tf32", "float32", "float64".'),
        (7, "Value is above the maximum of 180."),
    ]
    text = f"{MODEL}_target_: lockstep.models.ResNet18\nwidht: 32\n"
    assert server.problems(CONF / "model", text) == [(3, "Property widht is not allowed.")]


def test_a_new_project_has_its_own_schema(server: Editor, tmp_path: Path) -> None:
    project.create(tmp_path / "roses")
    conf = tmp_path / "roses" / "conf"
    assert len([*conf.rglob("*.yaml")]) == 5
    assert problems(server, conf) == {}
    (conf / "model" / "net.yaml").write_text(f"{MODEL}_target_: roses.network.Net\n_partial_: 3\n")
    assert problems(server, conf) == {
        conf / "model" / "net.yaml": [(3, 'Incorrect type. Expected "boolean | string".')]
    }

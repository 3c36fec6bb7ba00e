"""`lockstep schema` accepts every file of conf/, and refuses what a schema can refuse.

Training refuses the rest. A file of tests/wrong_files has one error. Its first line names the key,
and whether only a training refuses it.
"""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lockstep.cli.schema import json_schema
from lockstep.config import overrides
from lockstep.config.composing.compose import CONF, DEFAULT, SCHEMA, Source
from lockstep.config.errors import ConfigError
from lockstep.starter.project import FILES
from lockstep.system.trees import at
from tests.support import schema
from tests.support.harness import ROOT

WRONG = ROOT / "tests/wrong_files"
FILES_OF_CONF = [*sorted(CONF.rglob("*.yaml")), *sorted((FILES / "conf").rglob("*.yaml"))]
WHOLE = json_schema(DEFAULT)
LINE = re.compile(
    r"^(?:# @package _global_\n)?# yaml-language-server: \$schema=(\S+?)(?:#/\$defs/(\w+))?\n"
)


def validator() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        # A grammar of URLs, which no file names, would take 2 s.
        patch.setitem(sys.modules, "rfc3987_syntax", None)
        from jsonschema import Draft202012Validator
    return Draft202012Validator


def errors(tree: Any, part: str | None = None) -> list[str]:
    whole_or_part = WHOLE if part is None else {"$ref": f"#/$defs/{part}", "$defs": WHOLE["$defs"]}
    found = validator()(whole_or_part).iter_errors(tree)
    return [f"{error.json_path}: {error.message}" for error in found]


def tree_of(path: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(path))


def test_schema_valid_and_current() -> None:
    validator().check_schema(WHOLE)
    assert WHOLE["$schema"] == validator().META_SCHEMA["$id"]
    current = schema.json_schema()
    assert current == WHOLE, "python -m tests.support.schema > conf/lockstep.schema.json"


@pytest.mark.parametrize("path", FILES_OF_CONF, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_conf_files_valid(path: Path) -> None:
    line = LINE.match(path.read_text())
    assert line is not None
    conf = FILES / "conf" if path.is_relative_to(FILES) else CONF
    assert (path.parent / line[1]).resolve() == conf / SCHEMA.name
    assert line[2] == (
        None if path.parent == conf or "@package _global_" in path.read_text() else path.parent.name
    )
    assert errors(tree_of(path), line[2]) == []


@pytest.mark.usefixtures("no_gpus")
@pytest.mark.parametrize(
    "path", sorted(WRONG.rglob("*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_wrong_file_refused(path: Path) -> None:
    text = path.read_text()
    header = re.search(r"^# Refused( by lockstep train only)?: (.*)$", text, re.MULTILINE)
    assert header is not None
    with pytest.raises(ConfigError) as caught:
        overrides.check([f"{path.parent.name}={path.stem}"], Source(added=WRONG), is_multirun=False)
    assert len(caught.value.errors) == 1
    assert header[2] in str(caught.value)
    tree, part = tree_of(path), None if "@package _global_" in text else path.parent.name
    if header[1]:
        assert errors(tree, part) == []
        return
    assert len(errors(tree, part)) == 1
    *above, name = header[2].split(".")
    del at(tree, above)[name]
    assert errors(tree, part) == []

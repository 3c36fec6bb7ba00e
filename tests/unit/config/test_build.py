"""Objects are built from the values of a saved configuration, which are never resolved again."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockstep.config import build, storage
from lockstep.config.compose import composed
from lockstep.config.errors import ConfigError
from lockstep.config.target_sections import Open
from lockstep.config.validation import check_tree, checked

TEXTS = ["${oc.env:HOME}", "???", r"\\\${x}"]


def section(**arguments: Any) -> Open:
    return Open.model_validate({"_target_": "builtins.dict", **arguments})


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_reaches_its_target_as_it_stands(text: str, tmp_path: Path) -> None:
    nested = {"_target_": "builtins.dict", "_args_": [{"b": text}], "a": [text]}
    given = {"a": text, "list": [{"key": text}], text: 1}
    wanted = {**given, "nested": {"b": text, "a": [text]}, "supplied": text}
    assert build.build(section(**given, nested=nested), supplied=text) == wanted
    bound = build.build(section(**given, nested=nested, _partial_=True))
    assert bound(supplied=text) == wanted
    tree = storage.to_tree(checked(composed(["data=synthetic"])))
    storage.save(check_tree({**tree, "notify": {**tree["notify"], "command": text}}), tmp_path / "config.yaml")
    assert storage.load(tmp_path / "config.yaml").notify.command == text


@pytest.mark.parametrize("content", ["seed: &a [1]\ntask: *a\n", None])
def test_a_configuration_with_an_alias_or_that_is_a_pipe_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config.yaml"
    os.mkfifo(path) if content is None else path.write_text(content)
    with pytest.raises(ConfigError, match=r"config\.yaml (cannot be read: .*alias|contains no configuration)"):
        storage.load(path)


def test_sections_of_a_section_are_built_too_unless_it_is_not_recursive() -> None:
    inner = {"_target_": "builtins.dict", "_partial_": True, "a": 1}
    made = build.build(section(x=[inner], _convert_="none"))["x"][0]
    assert isinstance(made, partial)
    assert (made.func, made.args, made.keywords) == (dict, (), {"a": 1})
    assert made(b=2) == {"a": 1, "b": 2}
    assert build.build(section(x=inner, _recursive_=False)) == {"x": inner}


def test_what_a_target_raises_comes_out_and_what_hydra_refuses_stays_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        build.build(Open.model_validate({"_target_": "builtins.int", "_args_": ["x"]}))
    with pytest.raises(ImportError, match="nowhere"):
        build.build(Open.model_validate({"_target_": "nowhere.at_all"}))
    with pytest.raises(Exception, match=r"os\.system"):
        build.build(Open.model_validate({"_target_": "os.system", "command": "true"}))

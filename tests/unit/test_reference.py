"""docs/configuration.md is what the schema and conf/ say, docs/api.md what signatures and docstrings say."""

import importlib
import inspect
import subprocess
import sys
from typing import Any, Protocol

import pytest

from lockstep.config.schema import Config, fields
from lockstep.config.sections import Scope
from tests.support import reference
from tests.support.harness import ROOT, environ

DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", ["configuration", "api"])
def test_a_page_is_current(page: str) -> None:
    words = [sys.executable, "-m", "tests.support.reference", page]
    done = subprocess.run(words, cwd=ROOT, env=environ(), capture_output=True, text=True, check=True)
    command = f"python -m tests.support.reference {page} > docs/{page}.md"
    assert done.stdout == (DOCS / f"{page}.md").read_text(), command


def test_the_page_has_every_key_and_everything_that_a_key_can_decide() -> None:
    text = (DOCS / "configuration.md").read_text()
    assert all(f"`{name}`" in text or f"`{name}=" in text or f"`{name}." in text for name in fields(Config))
    assert reference.CHANGES.keys() | {Scope.BENCHMARK} == set(Scope)


def is_protocol(definition: Any) -> bool:
    return Protocol in getattr(definition, "__bases__", ())


def test_the_page_of_names_has_every_public_name_with_all_its_parameters() -> None:
    text = (DOCS / "api.md").read_text()
    assert "`lockstep.Task` is `lockstep.tasks.Task`." in text
    for package in ("lockstep", *(f"lockstep.{name}" for name in reference.PACKAGES)):
        face = importlib.import_module(package)
        for name in (name for name in face.__all__ if f"`{package}.{name}` is `" not in text):
            entry = text.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
            assert f"{package}.{name}(" in entry
            call = entry.partition("```python\n")[2].partition("\n```")[0]
            definition = getattr(face, name)
            members = [member for member in vars(definition) if not member.startswith("_")]
            given = inspect.signature(definition).parameters.values() if not is_protocol(definition) else ()
            named = [p.name for p in given if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            parameters = members if is_protocol(definition) else named
            assert all(f"{parameter}:" in call or f"def {parameter}(" in call for parameter in parameters)

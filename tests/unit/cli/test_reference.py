"""docs/configuration.md is what the schema and conf/ say."""

import subprocess
import sys

from lockstep.cli import reference
from lockstep.config.schema import Config, fields
from lockstep.config.sections import Scope
from tests.support.harness import ROOT, environ

PAGE = ROOT / "docs" / "configuration.md"


def test_the_page_is_current() -> None:
    words = [sys.executable, "-m", "lockstep.cli.reference"]
    done = subprocess.run(words, cwd=ROOT, env=environ(), capture_output=True, text=True, check=True)
    assert done.stdout == PAGE.read_text(), f"{' '.join(words[1:])} > docs/configuration.md"


def test_the_page_has_every_key_and_everything_that_a_key_can_decide() -> None:
    text = PAGE.read_text()
    assert all(f"`{name}`" in text or f"`{name}=" in text or f"`{name}." in text for name in fields(Config))
    assert reference.CHANGES.keys() | {Scope.BENCHMARK} == set(Scope)

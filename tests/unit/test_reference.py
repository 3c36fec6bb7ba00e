"""docs/configuration.md and docs/api.md are current."""

import subprocess
import sys

import pytest

from tests.support.harness import ROOT, environ


@pytest.mark.processes
@pytest.mark.parametrize("page", ["configuration", "api"])
def test_a_generated_page_is_current(page: str) -> None:
    line = [sys.executable, "-m", "tests.support.reference", page]
    done = subprocess.run(line, cwd=ROOT, env=environ(), capture_output=True, text=True, check=True)
    command = f"python -m tests.support.reference {page} > docs/{page}.md"
    assert done.stdout == (ROOT / "docs" / f"{page}.md").read_text(), command

"""README and all pages of the docs are typed by a reader."""

import re
from pathlib import Path

import pytest

from tests.support.harness import ROOT
from tests.support.reader import read

pytestmark = pytest.mark.processes
# pages whose commands set up a machine, and modules
NOT_TYPED = ("api", "install", "project")
DOCS = [
    page
    for page in sorted((ROOT / "docs").glob("*.md"))
    if page.stem not in NOT_TYPED and re.search("^```(sh|python)", page.read_text(), re.MULTILINE)
]
PAGES = [
    pytest.param(ROOT / "README.md", id="README"),
    *(pytest.param(page, id=page.stem, marks=pytest.mark.full) for page in DOCS),
]


@pytest.mark.parametrize("page", PAGES)
def test_page_as_typed(page: Path, tmp_path: Path) -> None:
    read(page, tmp_path)

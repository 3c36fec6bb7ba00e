"""Every page for users of another library as they type it, the commands in its tables too."""

from pathlib import Path

import pytest

from tests.support.harness import ROOT
from tests.support.reader import read

pytestmark = [pytest.mark.processes, pytest.mark.full]
PAGES = sorted((ROOT / "docs").glob("from-*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_page_as_typed(page: Path, tmp_path: Path) -> None:
    read(page, tmp_path)

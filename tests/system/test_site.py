"""The site builds without warnings and network, and its notebook is current."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support import notebook
from tests.support.harness import PATIENCE_S, ROOT, environ

pytestmark = [pytest.mark.processes, pytest.mark.full]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", ROOT / "docs", folder]
    done = subprocess.run(
        command, env=environ(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_offline(site: Path) -> None:
    listed = re.findall(r"^- \[.+\]\((.+\.md)\): .", (site / "llms.txt").read_text(), re.MULTILINE)
    pages = {
        path.stem for kind in ("md", "ipynb") for path in (ROOT / "docs").glob(f"*.{kind}")
    } - {"index"}
    assert sorted(listed) == sorted(f"{page}.md" for page in pages)
    assert all((site / name).read_text() in (site / "llms-full.txt").read_text() for name in listed)
    for page in site.glob("*.html"):
        assert (
            re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?:', page.read_text()) == []
        ), page.name


def test_notebook_current(tmp_path: Path) -> None:
    shown, now = notebook.stored(), notebook.executed(tmp_path)
    assert notebook.shapes(shown) == notebook.shapes(now), f"python -m {notebook.__name__}"
    for text in ("\n".join(notebook.texts(each)) for each in (shown, now)):
        assert "\r" not in text
        epochs = [int(number) for number in re.findall(r"^ +(\d+)/\d+ ", text, re.MULTILINE)]
        assert len(epochs) > 6
        assert all(later in (1, before + 1) for before, later in pairwise(epochs)), (
            "each epoch has its line"
        )

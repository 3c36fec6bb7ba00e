"""The site builds without a warning and without a network, and its notebook runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.harness import PATIENCE_S, ROOT, environ

pytestmark = [pytest.mark.processes, pytest.mark.full]
NOTEBOOK = ROOT / "docs" / "start.ipynb"


def test_the_site_builds_with_a_search_that_works_offline(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", ROOT / "docs", tmp_path]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exactness" in (tmp_path / "searchindex.js").read_text()
    listed = re.findall(r"^- \[.+\]\((.+\.md)\): .", (tmp_path / "llms.txt").read_text(), re.MULTILINE)
    pages = {path.stem for kind in ("md", "ipynb") for path in (ROOT / "docs").glob(f"*.{kind}")} - {"index"}
    assert sorted(listed) == sorted(f"{page}.md" for page in pages)
    assert all((tmp_path / name).read_text() in (tmp_path / "llms-full.txt").read_text() for name in listed)
    for page in tmp_path.glob("*.html"):
        assert re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?:', page.read_text()) == [], page.name


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # where it is set, a kernel does not show the output of its children
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    notebook = nbformat.read(NOTEBOOK, nbformat.NO_CONVERT)
    NotebookClient(notebook, timeout=PATIENCE_S, resources={"metadata": {"path": str(tmp_path)}}).execute()
    text = str([cell.get("outputs") for cell in notebook.cells])
    assert "Exact: nothing differs by more than " in text
    assert "'stopped'" in text
    assert "'finished'" in text
    assert text.count("photos/odd/1.png") == 1

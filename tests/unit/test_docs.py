"""Links, names and generated parts of the pages are right."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import page as results
from tests.support import architecture
from tests.support.harness import ROOT, environ
from tests.support.pages import files

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *DOCS]
OF_OTHERS = ("src/train.py", "src/eval.py")  # of lightning-hydra-template
LINK = re.compile(r"\]\(([^)#:]+)(?:#([\w-]+))?\)")


def anchors(page: Path) -> set[str]:
    """Names of the headings of a page, as GitHub and MyST make them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_page_links() -> None:
    for page in (*PAGES, ROOT / "CHANGELOG.md"):
        for name, anchor in LINK.findall(page.read_text()):
            target = page.parent / name
            assert target.is_file(), f"{page.name} points to {name}"
            assert not anchor or anchor in anchors(target), f"{page.name} points to {name}#{anchor}"


def test_pages_in_index() -> None:
    listed = re.findall(
        r"^[\w-]+\.(?:md|ipynb)$", (ROOT / "docs/index.md").read_text(), re.MULTILINE
    )
    there = {path.name for path in (*DOCS, *(ROOT / "docs").glob("*.ipynb"))}
    assert len(listed) == len(set(listed))
    assert {*listed, "index.md"} == there


def test_page_modules_exist() -> None:
    folders = ("src", "tests", "benchmarks")
    modules = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    }
    for page in PAGES:
        text = re.sub(r"https?://\S+", "", page.read_text())
        known = modules | files(page).keys()
        for name in re.findall(r"[\w/]+\.py\b", text):
            name = name.lstrip("/")  # of a link that begins with two dots
            is_file = any(file == name or file.endswith(f"/{name}") for file in known)
            assert is_file or name in ("train.py", "own.py", *OF_OTHERS), (
                f"{page.name} names {name}"
            )


def test_architecture_picture_current() -> None:
    picture = ROOT / "docs" / "images" / "architecture.svg"
    assert picture.read_text() == architecture.drawing() + "\n", (
        f"python -m {architecture.__name__} > {picture}"
    )


def test_results_page_current() -> None:
    assert results.PAGE.read_text() == results.page(), "python -m benchmarks.page"


@pytest.mark.processes
@pytest.mark.parametrize("page", ["configuration", "api"])
def test_generated_page_current(page: str) -> None:
    line = [sys.executable, "-m", "tests.support.reference", page]
    done = subprocess.run(line, cwd=ROOT, env=environ(), capture_output=True, text=True, check=True)
    command = f"python -m tests.support.reference {page} > docs/{page}.md"
    assert done.stdout == (ROOT / "docs" / f"{page}.md").read_text(), command

"""What the documents point to is there."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import architecture, shards
from tests.support.guides import guides, long_blocks
from tests.support.harness import ROOT

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
OF_OTHERS = ("src/train.py", "src/eval.py")  # of lightning-hydra-template
LINK = re.compile(r"\]\(([^)#:]+)(?:#([\w-]+))?\)")


def anchors(page: Path) -> set[str]:
    """The names that headings of a page have in links."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_has_its_file_and_its_heading(page: Path) -> None:
    for name, anchor in LINK.findall(page.read_text()):
        target = page.parent / name
        assert target.is_file(), f"{page.name} points to {name}"
        assert not anchor or anchor in anchors(target), f"{page.name} points to {name}#{anchor}"


@pytest.mark.parametrize(("name", "num_sections"), [("own-data", 3), ("own-loss", 6), ("own-network", 5)])
def test_no_block_of_a_how_to_is_longer_than_a_reader_likes_to_copy(name: str, num_sections: int) -> None:
    page = ROOT / "docs" / f"{name}.md"
    assert long_blocks(page) == []
    assert len(guides(page)) == num_sections


def test_every_page_is_reached_from_the_readme() -> None:
    seen, to_see = set(), [ROOT / "README.md"]
    while to_see:
        page = to_see.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            to_see += [(page.parent / name).resolve() for name, _ in LINK.findall(page.read_text())]
    assert {page.name for page in PAGES} - {page.name for page in seen} == {"CHANGELOG.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_and_tests_that_a_page_names_are_there(page: Path) -> None:
    if page.name == "CHANGELOG.md":  # it tells of what was
        return
    files = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/**/*.py")}
    files |= {name for guide in guides(page).values() for name in guide.files}  # that the page itself has
    for name in re.findall(r"[\w/]+\.py\b", page.read_text()):
        name = name.lstrip("/")  # of a link that begins with two dots
        known = any(file == name or file.endswith(f"/{name}") for file in files)
        assert known or name in ("train.py", "gradient.py", "own.py", *OF_OTHERS), f"{page.name} names {name}"


def test_tests_that_a_page_names_are_there() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert len(named) > 30
    assert {name for name in named if f"def {name}(" not in tests} == set()


def test_the_table_of_the_architecture_says_where_to_begin_and_where_to_look() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text().partition("## To change something")[2]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 12
    for what, begin, look in rows:
        names = re.findall(r"`[\w/]+\.(?:pyi?|yaml)`", begin + look)
        links = re.findall(r"\]\(\.\./", begin + look)  # another test follows them
        assert len(names) == len(links) > 0, f"{what}: a file without a link"


@pytest.mark.parametrize("module", [architecture, shards], ids=lambda module: module.__name__)
def test_a_drawing_is_current(module: Any) -> None:
    name = module.__name__.rpartition(".")[2]
    picture = ROOT / "docs" / "images" / f"{name}.svg"
    assert picture.read_text() == module.drawing() + "\n", f"python -m {module.__name__} > docs/images/{name}.svg"

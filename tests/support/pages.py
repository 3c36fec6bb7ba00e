"""Blocks of a page of the docs.

A block is a file if its first line, after Hydra's `# @package`, is a path.
"""

import re
import shutil
from pathlib import Path

from tests.support.harness import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?:# @package \w+\n)?# ([\w./-]+\.\w+)\b")


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(page.read_text()) if name == language]


def files(page: Path) -> dict[str, str]:
    """Contents of the files that the blocks of a page are, by their paths in a project."""
    texts = [*blocks(page, "python"), *blocks(page, "yaml")]
    return {path[1]: text for text in texts if (path := FILE.match(text))}


def write_files(page: Path, folder: Path) -> None:
    for name, text in files(page).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def write_project(folder: Path) -> Path:
    """Write the package, `conf/` and train.py, as a fresh clone has them."""
    for name in ("src", "conf"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    shutil.copy(ROOT / "train.py", folder)
    return folder

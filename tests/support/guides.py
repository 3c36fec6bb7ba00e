"""The guides in docs/ as files and commands, so that tests run what a reader copies.

A block is a file if its first line, after Hydra's `# @package _global_`, is a comment with a path. A `sh` block has a
command in each line. A section of the second level includes the blocks before the first section.
"""

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.runs.folder import RunFolder
from tests.support import commands
from tests.support.harness import PATIENCE_S, ROOT, difference, environ

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"(?:# @package \w+\n)?# ([\w./-]+\.\w+)\b")
LONGEST_BLOCK = 25  # lines


@dataclass(frozen=True)
class Guide:
    """A section of a guide: files by their path in the project, and commands."""

    title: str
    files: dict[str, str]
    commands: tuple[tuple[str, ...], ...]

    def write(self, project: Path) -> None:
        for name, text in self.files.items():
            path = project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def guides(page: Path) -> dict[str, Guide]:
    """The sections with blocks, by their headings."""
    before, *sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    found = {}
    for section in sections:
        title, _, text = section.partition("\n")
        files: dict[str, str] = {}
        commands: list[tuple[str, ...]] = []
        for kind, block in BLOCK.findall(before) + BLOCK.findall(text):
            path = PATH.match(block)
            if kind == "sh":
                commands += [tuple(shlex.split(line, comments=True)) for line in block.splitlines() if line.strip()]
            elif path is not None:
                files[path[1]] = block
        if files or commands:
            found[title] = Guide(title, files, tuple(commands))
    return found


def long_blocks(page: Path) -> list[str]:
    """First lines of blocks with more than LONGEST_BLOCK lines."""
    return [text.partition("\n")[0] for _, text in BLOCK.findall(page.read_text()) if text.count("\n") > LONGEST_BLOCK]


def write_project(folder: Path) -> Path:
    """Write the package, `conf/` and train.py, as a fresh clone has them."""
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "train.py", folder)
    return folder


def project_of(page: Path, folder: Path) -> Path:
    """Write a fresh clone with the files of all sections of a page."""
    project = write_project(folder)
    for guide in guides(page).values():
        guide.write(project)
    return project


def run(project: Path, *words: str, code: int = 0, has_own_lockstep: bool = False) -> str:
    """Run `python ...` or `lockstep ...` in the project, which must exit with `code`. Returns its output.

    It runs the Lockstep of this tree, or that of the project in a new process.
    """
    start = {"python": [], "lockstep": ["-m", "lockstep"]}[words[0]]
    line = [sys.executable, *start, *words[1:]]
    variables = {**environ(), "PYTHONPATH": str(project / "src")}
    if has_own_lockstep:
        pipes: dict[str, Any] = {"capture_output": True, "text": True, "timeout": PATIENCE_S}
        done = subprocess.run(line, cwd=project, env=variables, **pipes)
    else:
        done = commands.run(line, project, variables)
    assert done.returncode == code, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def trained(project: Path, *words: str) -> RunFolder:
    """Train two epochs in the project. Returns the run."""
    assert "Finished 2 epochs" in run(project, *words)
    return RunFolder((project / "outputs" / "latest").resolve())


def assert_two_workers_train_what_one_does(project: Path, *words: str) -> None:
    """Train two epochs with one worker and with two, and compare."""
    alone, other = (trained(project, *words, f"trainer.devices={num_workers}") for num_workers in (1, 2))
    assert difference(alone, other) <= 1e-12

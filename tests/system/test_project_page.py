"""docs/project.md is a transcript.

Typed from top to bottom beside an installed Lockstep, all of it works.
"""

import shlex
from pathlib import Path

import pytest

from tests.support.harness import ROOT
from tests.support.pages import BLOCK, FILE
from tests.support.wheels import environment, lend, run, source

pytestmark = [pytest.mark.full, pytest.mark.processes]
PAGE = ROOT / "docs" / "project.md"


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return the project at the end of the page, and the output of each of its commands."""
    folder = tmp_path_factory.mktemp("typed")
    installed = environment(folder / "environment", source(folder / "source"))
    cwd, outputs = folder, {}
    for language, block in BLOCK.findall(PAGE.read_text()):
        path = FILE.match(block)
        if path is not None:
            (cwd / path[1]).parent.mkdir(parents=True, exist_ok=True)
            (cwd / path[1]).write_text(block)
            continue
        for line in block.splitlines() if language == "sh" else ():
            words = shlex.split(line, comments=True)
            if words[0] == "cd":
                cwd /= words[1]
                lend(installed, cwd)
            else:
                program = installed / words[0] if words[0] in ("lockstep", "python") else words[0]
                outputs[" ".join(words)] = run(cwd, program, *words[1:])
    return cwd, outputs


SHOWN = [
    ("make train", "Finished 20 epochs"),
    ("make test", "1 passed"),
    ("lockstep data check data=photos", "1,437 images (even: 713, odd: 724)"),
    ("python train.py", "Finished 10 epochs"),
    ("python train.py", "val f1"),
    ("lockstep eval latest", "\nf1        0."),
    ("lockstep verify", "Exact: nothing differs by more than "),
]


def test_page_as_typed(typed: tuple[Path, dict[str, str]]) -> None:
    project, outputs = typed
    assert project.name == "flowers"
    assert [command for command, text in SHOWN if text not in outputs[command]] == []
    assert (project / "predictions.csv").read_text().count("\n") > 800

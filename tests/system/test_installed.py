"""Lockstep is installed as a wheel, in an environment of its dependencies alone.

It works in an empty folder, in a project, and as docs/project.md says.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep.runs.folder import EXIT_STOPPED
from tests.support.harness import PATIENCE_S, ROOT
from tests.support.pages import BLOCK, FILE
from tests.support.wheels import environment, lend, run, source

pytestmark = [pytest.mark.full, pytest.mark.processes]
STOP, ENDLESS = "trainer.max_time_s=0.001", "trainer.max_time_s=null"
BRIEF = ("strategy=cpu", "trainer.max_epochs=1", "model.width=4", "callbacks.pictures=null")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel of this Lockstep."""
    folder = tmp_path_factory.mktemp("installed")
    return environment(folder / "environment", source(folder / "source"))


def test_files_of_wheel(installed: Path) -> None:
    (home,) = installed.parent.glob("lib/python3.*/site-packages/lockstep")

    def files(folder: Path) -> dict[str, bytes]:
        paths = (
            path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
        )
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}

    assert files(home / "conf") == files(ROOT / "conf")
    for data in ("starter/files", "board/static"):
        assert files(home / data) == files(ROOT / "src" / "lockstep" / data)
    assert run(home, installed / "lockstep", "--version") == f"lockstep {lockstep.__version__}\n"


def test_train_in_empty_folder(installed: Path, tmp_path: Path) -> None:
    command = installed / "lockstep"
    stopped = run(tmp_path, command, "train", *BRIEF, "trainer.devices=2", STOP, code=EXIT_STOPPED)
    assert "  lockstep train resume=outputs/" in stopped, "no train.py here"
    assert "Finished 1 epoch" in run(
        tmp_path, command, "train", "resume=outputs/latest", "trainer.devices=1", ENDLESS
    )
    home = run(tmp_path, installed / "python", "-c", "import lockstep; print(lockstep.__file__)")
    assert str(installed.parent) in home, "not this source tree"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outputs"]


# -- what a type checker sees ----------------------------------------------------------------------

PROJECT = ROOT / "tests" / "support" / "typed_project"


def test_types_of_strict_project(installed: Path, tmp_path: Path) -> None:
    run(tmp_path, installed / "lockstep", "new", "tulips")
    marked: set[tuple[str, int]] = set()
    for path in PROJECT.glob("*.py"):
        lines = path.read_text().splitlines()
        marked |= {
            (path.name, number) for number, line in enumerate(lines) if "# pyright: ignore" in line
        }
        (tmp_path / path.name).write_text(
            "\n".join(re.sub("# pyright: .*", "", line) for line in lines)
        )
    place = {"venvPath": str(installed.parents[1]), "venv": installed.parent.name}
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", **place}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    line = [sys.executable, "-m", "pyright", "--outputjson"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    found = {
        (Path(each["file"]).name, each["range"]["start"]["line"]): each["message"]
        for each in json.loads(done.stdout)["generalDiagnostics"]
    }
    assert {line: message for line, message in found.items() if line not in marked} == {}
    assert set(found) == marked != set()


# -- docs/project.md is a transcript: typed from top to bottom, all of it works --------------------

SHOWN = [
    ("make train", "Finished 20 epochs"),
    ("make test", "1 passed"),
    ("lockstep data check data=photos", "1,437 images (even: 713, odd: 724)"),
    ("python train.py", "Finished 10 epochs"),
    ("python train.py", "val f1"),
    ("lockstep eval latest", "\nf1        0."),
    ("lockstep verify", "Exact: nothing differs by more than "),
]


def test_page_as_typed(installed: Path, tmp_path: Path) -> None:
    cwd, outputs = tmp_path, dict[str, str]()
    for language, block in BLOCK.findall((ROOT / "docs" / "project.md").read_text()):
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
                shorter = ["debug=fast"] if "model.depth=3" in words else []
                if line not in outputs:  # `make test` again: `lockstep verify` has done it
                    outputs[line] = run(cwd, program, *words[1:], *shorter)
    assert cwd.name == "flowers"
    assert [command for command, text in SHOWN if text not in outputs[command]] == []
    assert (cwd / "predictions.csv").read_text().count("\n") > 800

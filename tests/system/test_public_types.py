"""What a type checker sees of the public names: in a user's project, in a new one, and of every name."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import PATIENCE_S, ROOT, environ
from tests.support.wheels import environment, run, source

pytestmark = [pytest.mark.full, pytest.mark.processes]
PROJECT = ROOT / "tests" / "support" / "typed_project"
GUESSED = (
    "lockstep.models.resnet.ResNet18",  # its layers, by the constructors that are called
    "lockstep.python.predictor.Predictor.__init__",  # called by `load` alone
    "lockstep.python.predictor.load",  # for that constructor
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel of this Lockstep."""
    folder = tmp_path_factory.mktemp("typed")
    return environment(folder / "environment", source(folder / "source"))


def pyright(cwd: Path, *words: str, **variables: str) -> dict[str, Any]:
    line = [sys.executable, "-m", "pyright", "--outputjson", *words]
    pipes: dict[str, Any] = {"capture_output": True, "text": True, "timeout": PATIENCE_S}
    done = subprocess.run(line, cwd=cwd, env={**environ(), **variables}, **pipes)
    return json.loads(done.stdout)


def test_a_strict_project_has_the_mistakes_that_it_marks_and_no_others(installed: Path, tmp_path: Path) -> None:
    run(tmp_path, installed / "lockstep", "new", "tulips")
    marked: set[tuple[str, int]] = set()
    for path in PROJECT.glob("*.py"):
        lines = path.read_text().splitlines()
        marked |= {(path.name, number) for number, line in enumerate(lines) if "# pyright: ignore" in line}
        (tmp_path / path.name).write_text("\n".join(re.sub("# pyright: .*", "", line) for line in lines))
    place = {"venvPath": str(installed.parents[1]), "venv": installed.parent.name}
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", **place}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    said = pyright(tmp_path)
    found = {
        (Path(each["file"]).name, each["range"]["start"]["line"]): each["message"]
        for each in said["generalDiagnostics"]
    }
    assert {line: message for line, message in found.items() if line not in marked} == {}
    assert set(found) == marked != set()


def test_every_public_name_has_a_type_that_no_checker_has_to_guess(installed: Path, tmp_path: Path) -> None:
    (site,) = installed.parent.glob("lib/python3.*/site-packages")
    folders = [str(site), *(site / "others.pth").read_text().split()]
    words = ("--verifytypes", "lockstep", "--ignoreexternal")  # these find no virtual environment
    said = pyright(tmp_path, *words, PYTHONPATH=os.pathsep.join(folders))
    public = {"lockstep.testing.assert_exact", "lockstep.cli.entry.train"}
    for stub in (site / "lockstep").rglob("__init__.pyi"):
        package = ".".join(stub.parent.relative_to(site).parts)
        found = re.findall(r"^from \.(\S+) import (\w+)", stub.read_text(), re.MULTILINE)
        public |= {f"{package}.{module}.{name}" for module, name in found}
    symbols = {each["name"]: each for each in said["typeCompleteness"]["symbols"]}
    assert public <= set(symbols)
    problems = {
        name: messages
        for name, symbol in symbols.items()
        if _is_of(name, public)
        and not _is_of(name, GUESSED)
        and (messages := [each["message"] for each in symbol.get("diagnostics", []) if each["severity"] == "error"])
    }
    assert problems == {}


def _is_of(name: str, owners: Iterable[str]) -> bool:
    """Whether this is one of these names, or a part of one."""
    return any(name == owner or name.startswith(f"{owner}.") for owner in owners)

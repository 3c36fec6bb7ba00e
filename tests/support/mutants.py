"""Breaks each mechanism of tests/mutants.toml, in a copy of the project, and runs its tests.

`python -m tests.support.mutants [WORDS]` takes those that contain the words. Exits with 1 where no
test fails.
"""

import functools
import os
import re
import shutil
import sys
import tempfile
import tomllib
import traceback
from pathlib import Path
from typing import NamedTuple

import lightning  # noqa: F401  # imported once, for the forks in which tests run
import pytest
import torch

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "mutants.toml"
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "outputs")


class Mutant(NamedTuple):
    """`broken` replaces `code`, which occurs once in the file; then one of the tests fails."""

    mechanism: str
    file: str
    code: str
    broken: str
    tests: tuple[str, ...]


def mutants() -> list[Mutant]:
    found = tomllib.loads(FILE.read_text())["mutant"]
    return [Mutant(**{**each, "tests": tuple(each["tests"])}) for each in found]


@functools.cache
def passes(project: Path, tests: tuple[str, ...]) -> bool:
    return not failed(project, tests)


def failed(project: Path, tests: tuple[str, ...]) -> str:
    """The first test that fails in this project; empty where all pass."""
    with tempfile.TemporaryFile("w+") as output:
        pid = os.fork()
        if pid == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            try:
                os._exit(_run(project, [f"tests/{name}" for name in tests]))
            finally:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        output.seek(0)
        text = output.read()
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return "" if status == 0 else found[1] if found else text


def _run(project: Path, paths: list[str]) -> int:
    os.chdir(project)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.path[:0] = [str(project), str(project / "src")]
    os.environ |= {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)  # it read the variable when it was imported
    code = pytest.main(["-n0", "-x", "-q", "--tb=no", *paths])
    sys.stdout.flush()
    return int(code)


def outcome(project: Path, mutant: Mutant) -> tuple[bool, str]:
    """Whether the mechanism was broken and a test failed, and which one."""
    path = project / "src" / "lockstep" / mutant.file
    text = path.read_text() if path.exists() else ""
    if text.count(mutant.code) != 1:
        return False, f"the code is {text.count(mutant.code)} times in {mutant.file}"
    if not passes(project, mutant.tests):
        return False, f"without the change there fails {failed(project, mutant.tests)}"
    path.write_text(text.replace(mutant.code, mutant.broken))
    try:
        name = failed(project, mutant.tests)
    finally:
        path.write_text(text)
    return bool(name), name or f"no test fails in {' '.join(mutant.tests)}"


def main(*words: str) -> int:
    chosen = [mutant for mutant in mutants() if all(word in str(mutant) for word in words)]
    num_good = 0
    with tempfile.TemporaryDirectory() as folder:
        project = Path(shutil.copytree(ROOT, Path(folder) / "project", ignore=LEFT_OUT))
        for mutant in chosen:
            is_good, text = outcome(project, mutant)
            num_good += is_good
            print(f"{'ok' if is_good else 'WRONG':5}  {mutant.mechanism}: {text}", flush=True)
    print(f"{num_good} of {len(chosen)} mechanisms were broken and seen to fail")
    return 0 if num_good == len(chosen) > 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

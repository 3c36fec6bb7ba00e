"""Commands run as other users of this machine, in a folder that all of them may write to.

This needs root.
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.harness import PATIENCE_S, ROOT, environ

FIRST, SECOND = 61001, 61002  # numbers that no package gives to a user
PATHS = [str(ROOT / "src"), *(path for path in sys.path if "site-packages" in path)]


def refusal() -> str:
    """Why this process cannot be another user; empty if it can."""
    if os.geteuid() != 0:
        return "needs root, to be two other users"
    return "" if _python() else "other users cannot read this Python and its packages"


@functools.cache
def _python() -> str | None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, shutil.which(version, path="/usr/local/bin:/usr/bin")):
        try:
            if (
                path
                and subprocess.run(
                    [path, "-c", "import rich"], **_as(FIRST), capture_output=True
                ).returncode
                == 0
            ):
                return path
        except PermissionError:
            continue
    return None


def _as(user: int) -> dict[str, Any]:
    variables = {**environ(), "PYTHONPATH": os.pathsep.join(PATHS), "PYTHONDONTWRITEBYTECODE": "1"}
    return {"user": user, "group": user, "extra_groups": [], "umask": 0o022, "env": variables}


def popen(user: int, cwd: Path, *words: str) -> "subprocess.Popen[str]":
    """Start `python ...` as another user, with pipes."""
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    home = Path(cwd, f"home-{user}")
    home.mkdir(exist_ok=True)
    os.chown(home, user, user)
    options = _as(user)
    options["env"] |= {"HOME": str(home)}
    return subprocess.Popen([str(_python()), *words], cwd=cwd, **options, **pipes)


def run(user: int, cwd: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `python ...` as another user."""
    with popen(user, cwd, *words) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder like /tmp with such an `outputs`; other users cannot enter the folders of pytest."""
    with tempfile.TemporaryDirectory(prefix="lockstep-users-") as path:
        os.chmod(path, 0o1777)
        outputs = Path(path, "outputs")
        outputs.mkdir()
        outputs.chmod(0o1777)
        yield Path(path)


@contextmanager
def without_rights() -> Iterator[None]:
    """Drop the rights of root inside."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)

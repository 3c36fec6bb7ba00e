"""Lockstep as a wheel in an environment that has only its dependencies."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from tests.support.harness import PATIENCE_S, ROOT, environ


def source(folder: Path) -> Path:
    """Copy what a wheel is built from."""
    for name in ("src", "conf"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def environment(folder: Path, source: Path) -> Path:
    """Make an environment with the wheel of a source and the dependencies of this one.

    Returns its `bin`.
    """
    wheels = folder.with_name(f"{folder.name}-wheel")
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source)
    (wheel,) = wheels.iterdir()
    venv.create(folder, with_pip=False)
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site,) = folder.glob("lib/python3.*/site-packages")
    # a .pth file does not have those read that lie in the folders it names: an editable Lockstep is
    # not found
    (site / "others.pth").write_text("".join(f"{path}\n" for path in others))
    python = folder / "bin" / "python"
    _pip("--python", python, "install", "--no-deps", "--no-index", "--ignore-installed", wheel)
    return folder / "bin"


def lend(environment: Path, project: Path) -> None:
    """Give a project this environment, so that it skips `make .venv/installed`."""
    (project / ".venv").symlink_to(environment.parent)
    (project / ".venv" / "installed").touch()


def run(cwd: Path, *words: str | Path, code: int = 0) -> str:
    """Run a command, which must exit with `code`, without PYTHONPATH. Returns its output."""
    variables = {
        name: value
        for name, value in environ().items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    pipes: dict[str, Any] = {"capture_output": True, "text": True, "timeout": PATIENCE_S}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=variables, **pipes)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def _pip(*words: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr

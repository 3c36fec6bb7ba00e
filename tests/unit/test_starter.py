"""`lockstep new` creates a complete project or none, and reports why."""

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep.runs.folder import EXIT_CONFIG
from lockstep.starter import project


class Installed:
    """A distribution with the origin that pip recorded."""

    def __init__(self, origin: dict[str, Any] | None) -> None:
        self._origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._origin is None else json.dumps(self._origin)


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, "lockstep-vision>=0.1.0,<0.2"),
        (
            {"url": "file:///wheels/lockstep.whl", "archive_info": {}},
            "lockstep-vision @ file:///wheels/lockstep.whl",
        ),
        (
            {"url": "file:///clone", "dir_info": {"editable": True}},
            "lockstep-vision @ file:///clone",
        ),
        (
            {"url": "https://git.example/lockstep", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "lockstep-vision @ git+https://git.example/lockstep@abc",
        ),
    ],
)
def test_requirement_by_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, requirement: str
) -> None:
    monkeypatch.setattr(
        importlib.metadata, "distribution", {"lockstep-vision": Installed(origin)}.__getitem__
    )
    monkeypatch.setattr(lockstep, "__version__", "0.1.0")
    assert project.create(tmp_path / "roses") == requirement
    assert (
        f'dependencies = ["{requirement}"]' in (tmp_path / "roses" / "pyproject.toml").read_text()
    )


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("torch", "a module torch exists already, and the project would shadow it"),
        ("Roses", "'Roses' is not a valid package name"),
        ("class", "'class' is not a valid package name"),
        ("here", "here exists"),
        ("file/roses", "file/roses cannot be created: Not a directory"),
    ],
)
def test_new_project_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_lockstep: Callable[..., int],
    name: str,
    error: str,
) -> None:
    """An error is one line and leaves no files."""
    (tmp_path / "A-B").mkdir()
    monkeypatch.chdir(tmp_path / "A-B")
    Path("here").mkdir()
    Path("file").touch()
    assert run_lockstep("new", name) == EXIT_CONFIG
    assert error in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["file", "here"]

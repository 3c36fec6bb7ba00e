"""What `lockstep jobs delete` removes, what stays, and why."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep.cluster import deletion
from lockstep.runs.discovery import Watched
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED, RunFolder
from tests.support.holding import HOLD, begun_by_another_process

NOW = 1.7e9  # 2023-11-14


def run(path: Path, *, started: float = NOW) -> RunFolder:
    path.mkdir(parents=True)
    folder = RunFolder(path)
    folder.config.write_text("seed: 0\n")
    folder.facts_file.write_text(json.dumps({"overrides": [], "inode": path.stat().st_ino}))
    folder.lock_file.touch()
    folder.write_status(state="failed", started=started, updated=started)
    os.utime(folder.config, (started, started))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "outputs"


def remove(root: Path, names: Sequence[str], *, is_sure: bool = True) -> int:
    runs = Watched(root, scan_every_s=0.0).runs().values()
    return deletion.remove([run for run in runs if run.name in names], is_sure=is_sure)


def left(root: Path) -> set[str]:
    return {path.parent.name for path in root.glob("**/config.yaml")}


def test_remove_without_terminal_needs_yes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run(root / "a").path / "big.ckpt").write_bytes(b"x" * 3000)
    assert remove(root, ["a"], is_sure=False) == EXIT_CONFIG
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split() == ["failed", "a", "3.1", "KiB", "checkpoint"]
    assert "add --yes" in said.err
    assert left(root) == {"a"}


@pytest.mark.parametrize(("typed", "code"), [("", 0), ("yess", 0), (EOFError, EXIT_INTERRUPTED), (" Y", 0)])
def test_remove_asks_on_terminal(root: Path, monkeypatch: pytest.MonkeyPatch, typed: Any, code: int) -> None:
    run(root / "a")

    def answer(question: str) -> str:
        assert question.startswith("Remove 1 run, ")
        if typed is EOFError:
            raise EOFError
        return typed

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert remove(root, ["a"], is_sure=False) == code
    assert left(root) == (set() if typed == " Y" else {"a"})


def test_remove_locked_stays(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        run(root / name)
    with begun_by_another_process(HOLD, root / "a"):
        assert remove(root, ["a", "b"]) == EXIT_FAILED
    assert "Kept: a: it is being trained" in capsys.readouterr().err
    assert left(root) == {"a"}


def test_remove_resumed_meanwhile_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(root / "a")
    lock = RunFolder.lock

    def resumed_lock(self: RunFolder) -> Any:
        folder.update_status(updated=NOW + 1)
        return lock(self)

    monkeypatch.setattr(RunFolder, "lock", resumed_lock)
    assert remove(root, ["a"]) == EXIT_FAILED
    assert "a: it was resumed in the meantime" in capsys.readouterr().err
    assert left(root) == {"a"}


def test_remove_follows_no_link(root: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    folder = run(root / "a")
    (folder.path / "data").symlink_to(precious)
    (folder.path / "deeper").mkdir()
    (folder.path / "deeper" / "data").symlink_to(precious)
    (folder.path / "file").symlink_to(precious / "file")
    assert remove(root, ["a"]) == 0
    assert not folder.path.exists()
    assert (precious / "file").exists()


def test_remove_nested_run_stays(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(root / "outer")
    run(root / "outer" / "inner")
    assert remove(root, ["outer"]) == EXIT_FAILED
    assert "outer: it contains another run" in capsys.readouterr().err
    assert remove(root, ["outer", "outer/inner"]) == 0
    assert left(root) == set()


def test_remove_nested_waiting_job_stays(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(root / "outer")
    run(root / "outer" / "inner").lock_file.unlink()
    assert remove(root, ["outer"]) == EXIT_FAILED
    assert "outer: it contains another run" in capsys.readouterr().err
    assert left(root) == {"outer", "inner"}


def test_remove_interrupted_can_be_repeated(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(root / "a")
    folder.curves("val").mkdir()

    def interrupted(path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", interrupted)
        assert remove(root, ["a"]) == EXIT_INTERRUPTED
    assert folder.config.exists()
    assert folder.lock_file.exists()
    assert remove(root, ["a"]) == 0
    assert not folder.path.exists()


def test_remove_failure_is_reported(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        run(root / name)
    remove_folder = RunFolder.remove

    def failing(folder: RunFolder) -> None:
        if folder.path.name == "a":
            raise PermissionError(1, "Operation not permitted")
        remove_folder(folder)

    monkeypatch.setattr(RunFolder, "remove", failing)
    assert remove(root, ["a", "b"]) == EXIT_FAILED
    assert "a: it could not be removed: Operation not permitted" in capsys.readouterr().err
    assert left(root) == {"a"}

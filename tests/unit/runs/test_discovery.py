"""All runs below a folder: found, read, watched."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.runs.discovery import (
    DiscoveredRun,
    RunWatcher,
    differing_overrides,
    read_rows,
    read_run,
    read_tests,
    resume_command,
    scan,
)
from lockstep.runs.folder import RunFolder
from tests.support.harness import PATIENCE_S
from tests.support.users import without_rights

FULL = {
    "state": "finished", "reason": "", "name": "digits_resnet18", "host": "another machine",
    "pid": 7, "workers": 2, "device": "CPU, 1 thread each", "precision": "bfloat16",
    "started": 1e9, "epoch": 3, "max_epochs": 10,
    "best": 0.5, "monitor": "val/accuracy", "weights_sha256": "01" * 32,
    "metrics": {"val/loss": 0.25, "val/accuracy": 0.5},
}  # fmt: skip


def run(path: Path, *overrides: str, **status: Any) -> RunFolder:
    """A run folder with these typed overrides and this status; none without any."""
    path.mkdir(parents=True)
    folder = RunFolder(path)
    folder.config.write_text("seed: 0\n")
    (path / "run.json").write_text(json.dumps({"overrides": overrides}))
    if status:
        # not synced to the disk, which takes time
        (path / "status.json").write_text(json.dumps({**status, "updated": time.time()}))
    return folder


def found(folder: RunFolder) -> DiscoveredRun:
    return DiscoveredRun("id", "name", folder)


def facts_of(watcher: RunWatcher) -> list[dict[str, Any]]:
    return [watcher.facts(run) for run in watcher.runs().values()]


# -- searching -------------------------------------------------------------------------------------


def test_scan_nested_runs(tmp_path: Path) -> None:
    for name in (
        "2026-11-20/a",
        "2026-11-21/sweep/0",
        "2026-11-21/sweep/1",
        "2026-11-21/sweep/1/inner",
        "a/b/c/d/e/f",
        "u/v/w/x/y/z/too deep",
    ):
        run(tmp_path / name)
    (tmp_path / "config.yaml").touch()
    assert {each.name for each in scan(tmp_path).values()} == {
        ".", "2026-11-20/a", "2026-11-21/sweep/0", "2026-11-21/sweep/1", "2026-11-21/sweep/1/inner",
        "a/b/c/d/e/f",
    }  # fmt: skip


def test_copied_run_id(tmp_path: Path) -> None:
    """An id is stable, and does not reveal the path."""
    run(tmp_path / "one" / "secret")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (key,) = scan(tmp_path / "one")
    assert key in scan(tmp_path / "two")
    assert "secret" not in key


def test_scan_no_runs(tmp_path: Path) -> None:
    """Links, hidden folders and files of other tools are no runs."""
    outside, root = run(tmp_path / "outside"), tmp_path / "root"
    for name in ("real", ".hidden", "wandb/one"):
        run(root / name)
    for name, target in (("latest", Path("real")), ("link", outside.path), ("loop", root)):
        (root / name).symlink_to(target)
    (root / "folder" / "config.yaml").mkdir(parents=True)
    (root / "real" / "wandb" / "run-1" / "files").mkdir(parents=True)
    (root / "real" / "wandb" / "run-1" / "files" / "config.yaml").touch()
    assert sorted(each.name for each in scan(root).values()) == ["real", "wandb/one"]


def test_scan_unreadable_folder() -> None:
    with tempfile.TemporaryDirectory() as root:  # not tmp_path, which only its owner may enter
        Path(root).chmod(0o755)
        for name in ("a", "b"):
            run(Path(root) / name)
        (Path(root) / "b").chmod(0)
        with without_rights():
            assert [each.name for each in scan(Path(root)).values()] == ["a"]


# -- looking ---------------------------------------------------------------------------------------


def test_look_known_fields(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "optimizer.lr=0.2", **FULL, secret="x", remaining_s=None)
    facts = read_run(found(folder))
    updated = facts.pop("updated")
    assert abs(updated - time.time()) < PATIENCE_S
    assert facts == {**FULL, "id": "id", "run": "name", "overrides": ["optimizer.lr=0.2"]}


WRONG: dict[str, Any] = {
    "reason": 3, "name": None, "host": ["x"], "pid": "7", "workers": True, "device": {},
    "precision": 1.5, "started": "now", "epoch": float("nan"), "max_epochs": float("inf"),
    "best": 10**400, "monitor": False, "metrics": [1, 2],
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_look_wrong_type(tmp_path: Path, name: str) -> None:
    """The field is left out."""
    folder = run(tmp_path / "run")
    folder.status_file.write_text(json.dumps({**FULL, name: WRONG[name]}))
    facts = read_run(found(folder))
    assert facts.pop(name, {}) == {}
    assert facts == {key: value for key, value in FULL.items() if key != name} | {
        "id": "id",
        "run": "name",
        "overrides": [],
    }


DAMAGED: dict[str, Callable[[Path], Any]] = {
    "a folder": Path.mkdir,
    "half of it": lambda path: path.write_text('{"state": "fini'),
    "no object": lambda path: path.write_text("[1]"),
    "no UTF-8": lambda path: path.write_bytes(b'{"state": "\xff"}'),
    "an unknown state": lambda path: path.write_text('{"state": "winning"}'),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_look_damaged_status(tmp_path: Path, what: str) -> None:
    folder = run(tmp_path / "run", "seed=1")
    DAMAGED[what](folder.status_file)
    facts = read_run(found(folder))
    assert (facts["state"], facts["overrides"]) == ("broken", ["seed=1"])
    assert facts["reason"].startswith("status.json ")


def test_look_damaged_other_files(tmp_path: Path) -> None:
    """Damaged files other than the status do not hide a run."""
    folder = run(tmp_path / "run", state="finished")
    for name in ("run.json", "metrics.csv", "summary.json"):
        (folder.path / name).write_bytes(b'{"state": "\xff"}')
    assert (read_run(found(folder))["state"], read_run(found(folder))["overrides"]) == (
        "finished",
        [],
    )
    assert (read_rows(folder), read_tests(folder)) == ([], {})


def test_look_without_status(tmp_path: Path) -> None:
    """The lock and the failure give the state; a lock that is a pipe is that of no process."""
    folder = run(tmp_path / "run")
    assert read_run(found(folder))["state"] == "not started"
    with folder.lock():
        assert read_run(found(folder))["state"] == "starting"
    folder.record_failure("x")
    assert read_run(found(folder))["state"] == "failed"
    other = run(tmp_path / "other")
    os.mkfifo(other.lock_file)
    assert read_run(found(other))["state"] == "not started"


# -- watching --------------------------------------------------------------------------------------


def test_watched_changed_status(tmp_path: Path) -> None:
    """An ended run is read again once its status has changed."""
    ended, live = (
        run(tmp_path / "ended", **FULL),
        run(tmp_path / "live", state="training", host="another machine"),
    )
    watcher = RunWatcher(tmp_path, scan_every_s=0)
    facts_of(watcher)
    ended.write_status(state="training", host="another machine")
    live.write_status(state="finished")
    assert {facts["run"]: facts["state"] for facts in facts_of(watcher)} == {
        "ended": "training",
        "live": "finished",
    }


# -- more of a run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            {"a": ["w=16", "lr=0.1"], "b": ["w=16", "lr=0.2", "seed=1"], "c": ["lr=0.1", "w=16"]},
            {"a": "lr=0.1", "b": "seed=1 lr=0.2", "c": "lr=0.1"},
        ),
        ({"a": ["w=16", "lr=0.1"]}, {"a": "w=16 lr=0.1"}),
        (
            {  # first the keys that distinguish the most runs
                "a": ["data=x", "data.size=9", "lr=0", "seed=0"],
                "b": ["data=x", "data.size=9", "lr=1", "seed=0"],
                "c": ["data=x", "data.size=9", "lr=0", "seed=1"],
                "other": ["data=y"],
            },
            {
                "a": "lr=0 seed=0 data=x data.size=9",
                "b": "lr=1 seed=0 data=x data.size=9",
                "c": "lr=0 seed=1 data=x data.size=9",
                "other": "data=y",
            },
        ),
    ],
)
def test_differing_overrides(overrides: dict[str, list[str]], expected: dict[str, str]) -> None:
    assert (
        differing_overrides([{"id": key, "overrides": texts} for key, texts in overrides.items()])
        == expected
    )


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("epoch,val/loss,note\n1,0.5,x\n2,nan,\n", [{"epoch": 1, "val/loss": 0.5}, {"epoch": 2}]),
        (f"epoch,val/loss,x\n1,{'9' * 400},true\n", [{"epoch": 1}]),
        (f"epoch,x,y\n1,{'[' * 100_000},0.5\n2,,\n", [{"epoch": 1, "y": 0.5}, {"epoch": 2}]),
        (f"epoch,x\n1,{'1' * 131_073}\n", []),
        ("", []),
    ],
    ids=range(5),
)
def test_read_rows(tmp_path: Path, text: str, rows: list[dict[str, float]]) -> None:
    """Only finite numbers are read."""
    folder = run(tmp_path / "run")
    folder.metrics.write_text(text)
    assert read_rows(folder) == rows


@pytest.mark.parametrize(
    ("status", "has_checkpoint", "is_resumable"),
    [
        ({"state": "stopped"}, True, True),
        ({"state": "stopped"}, False, False),
        ({"state": "finished"}, True, False),
        ({"state": "failed", "reason": "The loss is not finite in step 3"}, True, False),
    ],
)
def test_resume_command(
    tmp_path: Path, status: dict[str, str], has_checkpoint: bool, is_resumable: bool
) -> None:
    folder = run(tmp_path / "run", **status)
    if has_checkpoint:
        folder.last_checkpoint.parent.mkdir()
        folder.last_checkpoint.touch()
    assert bool(resume_command(found(folder))) == is_resumable

"""All runs below a folder: found, read, watched."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.monitoring.selection import all_runs
from lockstep.runs import discovery, files
from lockstep.runs.discovery import (
    DiscoveredRun,
    Watched,
    differing_overrides,
    look,
    look_at,
    read_rows,
    read_tests,
    scan,
)
from lockstep.runs.folder import RunFolder
from tests.support.harness import PATIENCE_S

FULL = {
    "state": "finished", "reason": "", "name": "digits_resnet18", "host": "another machine", "pid": 7, "workers": 2,
    "device": "CPU, 1 thread each", "precision": "bfloat16", "started": 1e9, "epoch": 3, "max_epochs": 10,
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


def facts_of(watched: Watched) -> list[dict[str, Any]]:
    return [watched.facts(run) for run in watched.runs().values()]


# -- searching ---------------------------------------------------------------------------------------------------------


def test_every_run_is_found_by_its_name_below_the_root_the_root_included(tmp_path: Path) -> None:
    for name in ("2026-11-20/a", "2026-11-21/sweep/0", "2026-11-21/sweep/1", "2026-11-21/sweep/1/inner"):
        run(tmp_path / name)
    (tmp_path / "config.yaml").touch()
    assert {each.name for each in scan(tmp_path).values()} == {
        ".", "2026-11-20/a", "2026-11-21/sweep/0", "2026-11-21/sweep/1", "2026-11-21/sweep/1/inner",
    }  # fmt: skip


def test_an_id_is_stable_and_does_not_reveal_the_path(tmp_path: Path) -> None:
    run(tmp_path / "one" / "secret")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    ((key, one),) = scan(tmp_path / "one").items()
    assert key == one.id
    assert key in scan(tmp_path / "two")
    assert "secret" not in key


def test_links_hidden_folders_and_files_of_other_tools_are_no_runs(tmp_path: Path) -> None:
    outside = run(tmp_path / "outside")
    root = tmp_path / "root"
    run(root / "real")
    run(root / ".hidden")
    (root / "latest").symlink_to("real")
    (root / "link").symlink_to(outside.path)
    (root / "loop").symlink_to(root)
    (root / "folder" / "config.yaml").mkdir(parents=True)
    (root / "real" / "wandb" / "run-1" / "files").mkdir(parents=True)
    (root / "real" / "wandb" / "run-1" / "files" / "config.yaml").touch()
    run(root / "wandb" / "one")
    assert sorted(each.name for each in scan(root).values()) == ["real", "wandb/one"]


def test_the_search_ends_at_its_depth(tmp_path: Path) -> None:
    run(tmp_path.joinpath(*"abcdef"))
    run(tmp_path.joinpath(*"uvwxyz", "deeper"))
    assert [each.name for each in scan(tmp_path).values()] == ["a/b/c/d/e/f"]


def test_a_folder_that_cannot_be_read_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        run(tmp_path / name)
    scandir = os.scandir

    def refuse(path: Path) -> Any:
        if Path(path).name == "b":
            raise PermissionError(path)
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        assert [each.name for each in scan(tmp_path).values()] == ["a"]


# -- looking -----------------------------------------------------------------------------------------------------------


def test_a_run_is_read_with_its_known_fields_alone(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "optimizer.lr=0.2", **FULL, secret="x", remaining_s=None)
    facts = look(found(folder))
    updated = facts.pop("updated")
    assert abs(updated - time.time()) < PATIENCE_S
    assert facts == {**FULL, "id": "id", "run": "name", "overrides": ["optimizer.lr=0.2"]}


def test_a_run_is_read_by_its_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    facts = look_at(run(tmp_path / "outputs" / "x", **FULL))
    assert (facts["run"], facts["state"]) == ("outputs/x", "finished")


WRONG: dict[str, Any] = {
    "reason": 3, "name": None, "host": ["x"], "pid": "7", "workers": True, "device": {}, "precision": 1.5,
    "started": "now", "epoch": float("nan"), "max_epochs": float("inf"), "best": 10**400, "monitor": False,
    "metrics": [1, 2],
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_field_of_the_wrong_type_is_left_out(tmp_path: Path, name: str) -> None:
    folder = run(tmp_path / "run")
    (folder.path / "status.json").write_text(json.dumps({**FULL, name: WRONG[name]}))
    expected = {**FULL, "id": "id", "run": "name", "overrides": []}
    expected.pop(name)
    assert look(found(folder)) == (expected | {"metrics": {}} if name == "metrics" else expected)


def test_wrong_fields_of_a_run_do_not_hide_the_other_runs(tmp_path: Path) -> None:
    run(tmp_path / "good", **FULL)
    (run(tmp_path / "odd").path / "status.json").write_text(json.dumps({**FULL, **WRONG}))
    (tmp_path / "odd" / "run.json").write_text('{"overrides": [1, null]}')
    listed = sorted(facts_of(Watched(tmp_path, scan_every_s=0)), key=lambda facts: facts["run"])
    assert [(facts["run"], facts["overrides"]) for facts in listed] == [("good", []), ("odd", ["1", "None"])]


def test_only_finite_numbers_are_metrics(tmp_path: Path) -> None:
    folder = run(tmp_path / "run")
    metrics = {"good": 0.5, "nan": float("nan"), "inf": float("-inf"), "true": True, "text": "1", "huge": 10**400}
    (folder.path / "status.json").write_text(json.dumps({"state": "finished", "metrics": metrics}))
    assert look(found(folder))["metrics"] == {"good": 0.5}
    (folder.path / "metrics.csv").write_text(f"epoch,val/loss,x\n1,{'9' * 400},true\n")
    assert read_rows(folder) == [{"epoch": 1}]


DAMAGED: dict[str, Callable[[Path], Any]] = {
    "a folder": Path.mkdir,
    "half of it": lambda path: path.write_text('{"state": "fini'),
    "no UTF-8": lambda path: path.write_bytes(b'{"state": "\xff"}'),
    "an unknown state": lambda path: path.write_text('{"state": "winning"}'),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_status_makes_a_broken_run(tmp_path: Path, what: str) -> None:
    folder = run(tmp_path / "run", "seed=1")
    DAMAGED[what](folder.path / "status.json")
    facts = look(found(folder))
    assert facts["state"] == "broken"
    assert facts["reason"].startswith("status.json ")
    assert facts["overrides"] == ["seed=1"]


def test_other_damaged_files_do_not_hide_a_run(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", state="finished")
    for name in ("run.json", "metrics.csv", "summary.json"):
        (folder.path / name).write_bytes(b'{"state": "\xff"}')
    assert (look(found(folder))["state"], look(found(folder))["overrides"]) == ("finished", [])
    assert (read_rows(folder), read_tests(folder)) == ([], {})


def test_before_the_first_status_lock_and_failure_give_the_state(tmp_path: Path) -> None:
    folder = run(tmp_path / "run")
    assert look(found(folder))["state"] == "not started"
    with folder.lock():
        assert look(found(folder))["state"] == "starting"
    folder.record_failure("x")
    assert look(found(folder))["state"] == "failed"


# -- watching ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs that were read, in order."""
    names: list[str] = []

    def counting(run: DiscoveredRun) -> dict[str, Any]:
        names.append(run.name)
        return look(run)

    monkeypatch.setattr(discovery, "look", counting)
    return names


def test_the_newest_run_comes_first(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "new", "middle")):
        run(tmp_path / name, state="finished", started=[1e9, 3e9, 2e9][number])
    run(tmp_path / "without")
    names = [listed.facts["run"] for listed in all_runs(Watched(tmp_path, scan_every_s=0))]
    assert names == ["new", "middle", "without", "old"]  # made when its configuration was written: now


def test_an_ended_run_is_read_once_until_its_status_changes(tmp_path: Path, counted: list[str]) -> None:
    ended, live = run(tmp_path / "ended", **FULL), run(tmp_path / "live", state="training", host="another machine")
    watched = Watched(tmp_path, scan_every_s=0)
    for _ in range(3):
        facts_of(watched)
    assert (counted.count("ended"), counted.count("live")) == (1, 3)
    ended.write_status(state="training", host="another machine")
    live.write_status(state="finished")
    assert {facts["run"]: facts["state"] for facts in facts_of(watched)} == {"ended": "training", "live": "finished"}


def test_new_runs_are_found_by_the_next_search(tmp_path: Path) -> None:
    watched = Watched(tmp_path, scan_every_s=1000)
    assert facts_of(watched) == []
    first = run(tmp_path / "a", **FULL)
    assert facts_of(watched) == []
    watched.runs(is_fresh=True)
    assert [facts["run"] for facts in facts_of(watched)] == ["a"]
    shutil.rmtree(first.path)
    assert [facts["state"] for facts in facts_of(watched)] == ["not started"]  # until it is searched for again
    watched.runs(is_fresh=True)
    assert facts_of(watched) == []


# -- more of a run -----------------------------------------------------------------------------------------------------


def test_overrides_begin_with_the_keys_that_distinguish_the_most_runs() -> None:
    typed = {str(number): ["data=x", "data.size=9", f"lr={number % 2}", f"seed={number // 2}"] for number in range(4)}
    listed = [{"id": key, "overrides": overrides} for key, overrides in (typed | {"other": ["data=y"]}).items()]
    found = differing_overrides(listed)
    assert (found["0"], found["3"]) == ("lr=0 seed=0 data=x data.size=9", "lr=1 seed=1 data=x data.size=9")
    assert found["other"] == "data=y"


def test_overrides_that_all_runs_have_are_left_out() -> None:
    typed = {"a": ["w=16", "lr=0.1"], "b": ["w=16", "lr=0.2", "seed=1"], "c": ["lr=0.1", "w=16"]}
    listed = [{"id": key, "overrides": overrides} for key, overrides in typed.items()]
    assert differing_overrides(listed) == {"a": "lr=0.1", "b": "seed=1 lr=0.2", "c": "lr=0.1"}
    assert differing_overrides(listed[:1]) == {"a": "w=16 lr=0.1"}
    assert differing_overrides([]) == {}


def test_rows_hold_the_numbers_of_every_epoch(tmp_path: Path) -> None:
    folder = run(tmp_path / "run")
    assert read_rows(folder) == []
    files.write_rows(
        folder.metrics, [{"epoch": 1, "val/loss": 0.5, "note": "x"}, {"epoch": 2, "val/loss": float("nan")}]
    )
    assert read_rows(folder) == [{"epoch": 1, "val/loss": 0.5}, {"epoch": 2}]


def test_the_test_of_a_finished_run_is_read_from_its_summary(tmp_path: Path) -> None:
    folder = run(tmp_path / "run")
    assert read_tests(folder) == {}
    folder.write_summary({"test_accuracy": 0.5, "test_loss": float("nan"), "test_f1": None, "epochs": 3})
    assert read_tests(folder) == {"test/accuracy": 0.5}


def test_cells_that_no_number_has_are_left_out(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", state="finished")
    folder.metrics.write_text(f"epoch,x,y\n1,{'[' * 100_000},0.5\n2,,\n")
    assert read_rows(folder) == [{"epoch": 1, "y": 0.5}, {"epoch": 2}]
    folder.metrics.write_text(f"epoch,x\n1,{'1' * 131_073}\n")
    assert read_rows(folder) == []


def test_a_lock_that_is_a_pipe_is_the_one_of_no_process(tmp_path: Path) -> None:
    folder = run(tmp_path / "run")
    os.mkfifo(folder.lock_file)
    assert look(found(folder))["state"] == "not started"

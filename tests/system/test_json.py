"""With --json, standard output of every command is one JSON value, of errors too."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED
from tests.support.commands import latest, lockstep
from tests.support.image_files import write_image

SMALL = (
    *("data=synthetic", "data.train_size=64", "data.val_size=40", "data.test_size=40"),
    *("model.width=2", "trainer.max_epochs=1", "strategy=cpu", "callbacks.pictures=null"),
)


def value(done: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    """The one value on standard output."""
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, images and nothing else."""
    folder = tmp_path_factory.mktemp("json")
    for number in range(12):
        write_image(folder / "photos" / "ab"[number % 2] / f"{number}.png", number)
    found = value(lockstep(folder, "train", *SMALL, "--json"))
    run = latest(folder)
    assert (found["path"], found["state"], found["exit_code"]) == (str(run.path), "finished", 0)
    assert found["summary"] == run.read_summary() != {}
    return folder


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("status",), "path state"),
        pytest.param(("compare", "latest", "latest"), "settings results", marks=pytest.mark.full),
        (("eval", "latest", "--devices", "2"), "metrics images run confusion_matrix calibration"),
        (("predict", "latest", "photos"), "predictions rows unreadable"),
        pytest.param(
            ("predict", "latest", "photos", "--output", "rows.csv"),
            "predictions output",
            marks=pytest.mark.full,
        ),
        pytest.param(
            ("embed", "latest", "photos", "--output", "features.npy"),
            "images output",
            marks=pytest.mark.full,
        ),
        pytest.param(("labels", "latest"), "labels output suspicious", marks=pytest.mark.full),
        pytest.param(("data", "fetch", *SMALL), "data root weights", marks=pytest.mark.full),
        pytest.param(("data", "check", *SMALL), "splits", marks=pytest.mark.full),
        (("new", "roses"), "path requirement"),
        pytest.param(
            ("export", "latest", "--output", "net.pt2"),
            "file bytes checked",
            marks=pytest.mark.full,
        ),
        pytest.param(
            # 2 steps: cut after the last one of an epoch
            ("verify", *SMALL, "data.train_size=24", "global_batch_size=12"),
            "is_exact limit variants explanations",
            marks=pytest.mark.full,
        ),
        pytest.param(("train", "-m", *SMALL, "seed=1,2"), "path", marks=pytest.mark.full),
        pytest.param(
            ("benchmark", "benchmark=default", *SMALL[:5], "benchmark.budget_s=2"),
            "path environments",
            marks=pytest.mark.full,
        ),
    ],
)
def test_json_of_commands(here: Path, words: tuple[str, ...], keys: str) -> None:
    """Each command prints one JSON value."""
    assert {*keys.split()} <= value(lockstep(here, *words, "--json")).keys()


@pytest.mark.full
@pytest.mark.processes
def test_json_of_jobs(here: Path) -> None:
    job = value(lockstep(here, "eval", "latest", "cluster=local", "--json"))
    (ended,) = value(lockstep(here, "jobs", "wait", job["job"], "--json"))
    assert (ended["id"], ended["exit_code"]) == (job["job"], 0)
    (listed,) = value(lockstep(here, "jobs", "list", "--json"))
    assert (
        listed["id"]
        == value(lockstep(here, "jobs", "show", job["job"], "--json"))["id"]
        == job["job"]
    )
    result = value(lockstep(here, "jobs", "result", job["job"], "--json"))
    assert result["report"]["metrics"]["accuracy"] == result["test/accuracy"]
    assert (
        value(lockstep(here, "jobs", "cancel", job["job"], "--json"), EXIT_CONFIG)[0][
            "is_cancelled"
        ]
        is False
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "code", "key"),
    [
        (("train", "trainer.max_epoch=3"), "unknown", "trainer.max_epoch"),
        pytest.param(
            ("train", "-m", "trainer.max_epoch=3,4"),
            "unknown",
            "trainer.max_epoch",
            marks=pytest.mark.full,
        ),
        (("train", "--what"), "unknown", "--what"),
        (("verify", "model.width=x"), "value", "model.width=x"),
        pytest.param(("benchmark", "seed=x"), "value", "seed=x", marks=pytest.mark.full),
        (("train", "data=image_folder", "data.root=none"), "missing", ""),
        pytest.param(
            ("data", "check", "data=image_folder", "data.root=none"),
            "missing",
            "",
            marks=pytest.mark.full,
        ),
        (("status", "unknown"), "missing", ""),
        (("stop", "latest"), "failed", ""),
        pytest.param(("predict", "latest", "none"), "missing", "", marks=pytest.mark.full),
        (("eval", "latest", "--split", "all"), "failed", ""),  # of a worker
        (("runs", "--color"), "unknown", ""),
        pytest.param(("model", "--depth", "x"), "value", "", marks=pytest.mark.full),
        (("board",), "unknown", ""),
        pytest.param(("jobs", "list", "17"), "failed", "", marks=pytest.mark.full),
        (("jobs", "wait", "--what"), "unknown", ""),
    ],
)
def test_json_of_error(here: Path, words: tuple[str, ...], code: str, key: str) -> None:
    done = lockstep(here, *words, "--json")
    (found,) = value(done, EXIT_CONFIG)["errors"]
    assert [*found] == ["code", "key", "message", "hint"]
    assert (found["code"], found["key"]) == (code, key)
    assert found["message"] in done.stderr  # for people


@pytest.mark.processes
def test_json_of_failed_run(here: Path) -> None:
    breaks = "+callbacks.breaks={_target_:tests.support.callbacks.Breaks,seed:0,word:kaputt}"
    found = value(
        lockstep(here, "train", *SMALL, "hydra.run.dir=failed", "seed=0", breaks, "--json"),
        EXIT_FAILED,
    )
    assert found["state"] == "failed"
    assert "RuntimeError: kaputt" in found["errors"][0]["message"]

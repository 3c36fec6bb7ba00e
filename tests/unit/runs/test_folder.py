"""Run folders: names, atomic files, status, metrics, STOP, lock."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from lockstep.runs import files, heartbeat, naming
from lockstep.runs.files import atomic_file, write_atomically
from lockstep.runs.folder import ENDED_STATES, LIVE_STATES, STATUS_TIMEOUT_S, RunFolder
from lockstep.runs.naming import create_path, find, link_latest, short_path

NOW = datetime(2026, 11, 20, 19, 5, 7)
HOLD = """
import sys
from pathlib import Path
from lockstep.runs.folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("begun", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def create(root: Path, name: str, now: datetime) -> RunFolder:
    path = create_path(root, name, now)
    link_latest(root, path)
    return RunFolder(path)


def names(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def test_atomic_write_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut loses neither the bytes of a new file nor its name."""
    done: list[tuple[str, int]] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def noted(*given: Any, name: str = name, real: Any = real, **folders: int) -> None:
            done.append((name, os.fstat(given[0]).st_ino if name == "fsync" else 0))
            real(*given, **folders)

        monkeypatch.setattr(os, name, noted)
    write_atomically(tmp_path / "file", "whole")
    assert done == [
        ("fsync", (tmp_path / "file").stat().st_ino),
        ("replace", 0),
        ("fsync", tmp_path.stat().st_ino),
    ]


def test_create_path_same_second(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: create(tmp_path, "digits", NOW).path, range(40)))
    assert len(set(paths)) == 40
    assert all(path.is_dir() for path in paths)
    assert (tmp_path / "latest").resolve() in paths
    assert names(tmp_path) == {"2026-11-20", "latest"}


def test_latest_after_move(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    for name in ("first", "second"):
        path = create(tmp_path / "outputs", name, NOW).path
        assert (tmp_path / "outputs" / "latest").resolve() == path
    (tmp_path / "outputs").rename(tmp_path / "moved")
    assert (
        tmp_path / "moved" / "latest"
    ).resolve() == tmp_path / "moved" / "2026-11-20" / "19-05-07_second"


@pytest.mark.usefixtures("in_tmp_path")
def test_find(tmp_path: Path) -> None:
    create(Path("outputs"), "digits", NOW).config.touch()
    expected = tmp_path / "outputs" / "2026-11-20" / "19-05-07_digits"
    for name in (
        str(expected),
        "outputs/2026-11-20/19-05-07_digits",
        "2026-11-20/19-05-07_digits",
        "latest",
    ):
        assert find(name).path == expected
    assert short_path(expected) == "latest"
    create(Path("outputs").resolve(), "newer", NOW)
    assert short_path(expected) == "2026-11-20/19-05-07_digits"


def test_atomic_file_error(folder: RunFolder) -> None:
    path = folder.path / "file"
    path.write_text("old")
    with contextlib.suppress(ZeroDivisionError), atomic_file(path) as file:
        file.write(b"half of the new")
        file.flush()
        assert path.read_text() == "old"
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert names(folder.path) == {"file"}


def test_concurrent_writers(tmp_path: Path) -> None:
    texts = [letter * 10_000 for letter in "abcdefgh"]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_atomically(tmp_path / "file", text), texts * 5))
    assert (tmp_path / "file").read_text() in texts
    assert names(tmp_path) == {"file"}


def test_remove_leftovers(folder: RunFolder) -> None:
    """Temporary files of killed writers are removed, and nothing else."""
    for path in (folder.last_checkpoint, folder.pictures / "test_mistakes.png", folder.status_file):
        path.parent.mkdir(exist_ok=True)
        path.with_name(files.temporary_name(path)).touch()
    assert len(list(folder.path.rglob(".*"))) == 3
    others = {".lock", ".job", ".notes.12", ".last.ckpt.1.0a1b2c3d.txt", "last.ckpt.1.0a1b2c3d"}
    for name in others:
        (folder.path / name).touch()
    folder.remove_leftovers()
    assert names(folder.path) == {*others, "checkpoints", "pictures"}
    assert names(folder.checkpoints) == names(folder.pictures) == set()


@pytest.mark.parametrize(
    ("states", "silent"),
    [(LIVE_STATES, dict.fromkeys(LIVE_STATES, "no signal")), (ENDED_STATES, {})],
)
def test_status_without_process(
    folder: RunFolder, states: Sequence[str], silent: dict[str, str]
) -> None:
    for state in states:
        folder.write_status(host=socket.gethostname(), step=3)
        folder.update_status(state=state)
        with folder.lock():
            status = folder.read_status()
        assert (status["state"], status["step"]) == (state, 3)
        assert folder.read_status()["state"] == silent.get(state, state)
        folder.write_status(state=state, host="another machine")
        assert folder.read_status()["state"] == state


@pytest.mark.parametrize(("state", "before"), [("testing", "no signal"), ("failed", "failed")])
def test_status_with_summary(folder: RunFolder, state: str, before: str) -> None:
    """A run with a summary is finished, even if it was killed afterwards."""
    folder.write_status(state=state, host=socket.gethostname(), reason="ended by SIGKILL", step=3)
    folder.write_summary({"best": 0.5})
    status = folder.read_status()
    assert (status["state"], status["reason"], status["step"]) == ("finished", "", 3)
    folder.forget_end()  # as a longer resume does
    assert folder.read_status()["state"] == before


def test_status_ended_between_reads(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(folder: RunFolder) -> bool:
        folder.write_status(state="finished", host=socket.gethostname())
        return False

    folder.write_status(state="testing", host=socket.gethostname())
    monkeypatch.setattr(RunFolder, "is_locked", ended)
    assert folder.read_status()["state"] == "finished"


@pytest.mark.parametrize("skew_s", [-2 * STATUS_TIMEOUT_S, 2 * STATUS_TIMEOUT_S])
@pytest.mark.parametrize("whose", ["writer", "reader"])
def test_status_clock_skew(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, whose: str, skew_s: float
) -> None:
    """The file system has the clock: of a network disk, that of the file server."""
    folder.claim()  # the lock of another run is not touched
    folder.lock_file.touch()
    disk_s = time.time()
    now = time.time
    with monkeypatch.context() as machine:
        machine.setattr("time.time", lambda: now() + (skew_s if whose == "writer" else 0.0))
        folder.write_status(state="training", host="another machine")
    monkeypatch.setattr("time.time", lambda: now() + (skew_s if whose == "reader" else 0.0))
    for age, state in (
        (0, "training"),
        (STATUS_TIMEOUT_S - 60, "training"),
        (STATUS_TIMEOUT_S + 5, "no signal"),
    ):
        os.utime(folder.status_file, (disk_s - age, disk_s - age))
        assert folder.read_status()["state"] == state


def test_status_locked_run(folder: RunFolder) -> None:
    """It is live, however long a step takes on another machine."""
    folder.write_status(state="training", host="another machine")
    os.utime(folder.status_file, (0, 0))
    with folder.lock():
        assert folder.read_status()["state"] == "training"


def test_metrics_full_precision(folder: RunFolder) -> None:
    rows = [
        {"epoch": 1, "val/loss": 0.1 + 0.2, "note": 'a "quoted", text'},
        {"epoch": 2, "val/accuracy": 1 / 3},
    ]
    files.write_rows(folder.metrics, rows)
    assert folder.read_metrics() == [
        {"epoch": "1", "val/loss": repr(0.1 + 0.2), "note": 'a "quoted", text', "val/accuracy": ""},
        {"epoch": "2", "val/loss": "", "note": "", "val/accuracy": repr(1 / 3)},
    ]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            [{"epoch": 1, "train/loss": 0.5}, {"train/loss": 0.25, "epoch": 2}],
            "epoch,train/loss\n1,0.5\n2,0.25\n",
        ),
        ([{"epoch": 1}, {"epoch": 2, "val/loss": 0.5}], "epoch,val/loss\n1,\n2,0.5\n"),
        ([{"epoch": 1, "val/loss": 0.5}, {"epoch": 2}], "epoch,val/loss\n1,0.5\n2,\n"),
    ],
    ids=["other order", "new column", "no value"],
)
def test_metrics_appended(folder: RunFolder, rows: list[dict[str, float]], text: str) -> None:
    """An incomplete last line is ignored."""
    for row in rows:
        files.append_row(folder.metrics, row)
    assert (folder.path / "metrics.csv").read_text() == text
    folder.metrics.write_text(f"{text}3,0.12")
    assert [row["epoch"] for row in folder.read_metrics()] == ["1", "2"]


def test_keep_end_restored(folder: RunFolder) -> None:
    """The end of a run is restored without writing, unless a newer state is saved."""
    for path in (folder.checkpoints, folder.pictures):
        path.mkdir()
    ends = (folder.summary, folder.fold_rows, folder.confusion("test"))
    for path in (folder.last_checkpoint, *ends):
        path.write_text("{}")
    inodes = [path.stat().st_ino for path in ends]
    with folder.set_aside_end(ValueError):
        folder.forget_end()
        assert not any(path.exists() for path in folder.ended)
    assert [path.stat().st_ino for path in ends] == inodes
    with folder.set_aside_end(ValueError):
        os.utime(folder.last_checkpoint, ns=(5, 5))
    assert not any(path.exists() for path in folder.ended)
    assert [path.name for path in folder.path.rglob(".*")] == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [(KeyError, ["new", "failed", "a new one"]), (ValueError, ["old", "stopped", "the old one"])],
)
def test_keep_end_rejected(folder: RunFolder, error: type[Exception], expected: list[str]) -> None:
    """A rejection restores the configuration and the status, and another error does not."""
    folder.record_failure("the old one")
    folder.config.write_text("old")
    folder.write_status(state="stopped")
    with contextlib.suppress(error), folder.set_aside_end(ValueError):
        folder.forget_end()
        folder.config.write_text("new")
        folder.update_status(state="failed")
        folder.record_failure("a new one")
        raise error
    assert [
        folder.config.read_text(),
        folder.read_status()["state"],
        folder.failure_cause(),
    ] == expected


def test_request_stop_link(folder: RunFolder, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    folder.stop_flag.symlink_to(victim)
    folder.request_stop("first")
    assert not victim.exists()
    link = tmp_path / "link"
    link.symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(OSError, match="link"):
        RunFolder(link).request_stop("through a link")


def test_first_failure_stays(folder: RunFolder) -> None:
    folder.record_failure("cause")
    folder.record_failure("consequence")
    assert folder.failure.read_text() == "cause"


def test_lock_and_kill_9(folder: RunFolder) -> None:
    """A held run refuses a second process, and kill -9 of the first one frees it."""
    command = [sys.executable, "-c", HOLD, str(folder.path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        assert folder.is_locked()
        with pytest.raises(BlockingIOError), folder.lock():
            pytest.fail("two trainers in one folder")
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not folder.is_locked()
    with folder.lock():
        assert folder.is_locked()


def test_lock_with_readers(folder: RunFolder) -> None:
    """Readers of the lock do not keep a trainer out."""
    with folder.lock():
        pass
    with ThreadPoolExecutor(1) as pool:
        looks = pool.submit(lambda: [folder.is_locked() for _ in range(20_000)])
        while not looks.done():
            with folder.lock():
                pass


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "two words",
        "it's",
        'say "no"',
        "$HOME",
        "-x",
        "17",
        "null",
        "a=b,c",
        "a,b=[c]{d}",
        "path-1.2",
        "back\\",
        "q\\'",
    ],
)
@pytest.mark.usefixtures("in_tmp_path")
def test_quoted_names(tmp_path: Path, name: str) -> None:
    """A hint names the same folder to the shell and to Hydra."""
    for path in (tmp_path / name, tmp_path / "outputs" / name):
        _, word = shlex.split(f"eval {naming.quote_path(path)}")
        assert Path(word).absolute() == path
        assert not word.startswith("-")
        resume = shlex.split(naming.resume_command(path))[-1]
        override = OverridesParser.create().parse_override(resume)
        assert Path(str(override.value())).absolute() == path


@pytest.mark.usefixtures("in_tmp_path")
def test_find_unknown() -> None:
    """The error names the command that lists runs."""
    with pytest.raises(FileNotFoundError, match=r"typo is not a run folder.*lockstep runs lists"):
        find("typo")


def test_status_stopping(folder: RunFolder) -> None:
    folder.write_status(state="training", host=socket.gethostname())
    folder.request_stop("enough")
    with folder.lock():
        assert folder.read_status()["state"] == "stopping"
        folder.write_status(state="stopped", host=socket.gethostname())
        assert folder.read_status()["state"] == "stopped"


def test_stop_first_reason(folder: RunFolder) -> None:
    """It stays until it is cleared."""
    folder.request_stop("first")
    folder.request_stop("second")
    assert folder.stop_reason() == "first"
    folder.clear_stop()
    assert not folder.stop_flag.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder to another user")
def test_free_path_day_of_other_user(tmp_path: Path) -> None:
    day = tmp_path / f"{NOW:%Y-%m-%d}"
    day.mkdir()
    mine = naming.free_path(tmp_path, "run", NOW)
    os.chown(day, 4242, -1)
    assert mine.parent == day
    assert naming.free_path(tmp_path, "run", NOW).parent.name == f"{day.name}_{os.geteuid()}"


def test_absent_ranks(folder: RunFolder) -> None:
    assert heartbeat.absent_ranks(folder, 2).startswith("rank 0, 1 of 2 did not start")
    for rank in range(2):
        folder.heartbeat(rank).write_text("node1 17\n")
    assert heartbeat.absent_ranks(folder, 2) == ""

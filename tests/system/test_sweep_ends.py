"""Sweeps that are killed, broken or stopped by real signals: no process stays, nothing is lost, and they resume."""

import os
import signal
import time
from pathlib import Path

import pytest

from lockstep.runs.folder import RunFolder
from tests.support.callbacks import SEES
from tests.support.harness import PATIENCE_S, difference, train_all, wait_until, write_run
from tests.support.sweeps import TINY, processes_of, run, started, table_of, trials_of

pytestmark = pytest.mark.processes


@pytest.mark.full
def test_broken_and_killed_trial(tmp_path: Path) -> None:
    """They end nothing but themselves."""
    breaks = "+callbacks.breaks={_target_:tests.support.callbacks.Breaks,seed:0,word:kaputt}"
    overrides = [*TINY, "trainer.devices=2", "seed=0,1,2", breaks, SEES % "3", "trainer.max_epochs=3"]
    with started(tmp_path, *overrides, "launcher.parallel=1") as sweep:
        wait_until(lambda: list(tmp_path.glob("outputs/*/*/1/seen.json")), "the second trial")
        folder = trials_of(tmp_path)[1]
        workers = {int(beat.read_text().split()[1]) for beat in folder.heartbeats().values()}
        (trial,) = set(processes_of(folder)) - workers
        assert len(workers) == 2
        os.kill(trial, signal.SIGKILL)
        out, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 1, out
    assert processes_of(folder) == []
    assert out.index("Trial 0 failed") < out.index("Trial 1 failed") < out.index("Trial 2 finished")
    rows = {trial["trial"]: trial for trial in table_of(tmp_path)["trials"]}
    assert "kaputt" in rows[0]["reason"]
    assert "SIGKILL" in rows[1]["reason"]
    assert "test/accuracy" not in rows[2]  # a setting with a failed seed is not the best one


def test_killed_sweep_resumed(tmp_path: Path) -> None:
    """It goes on with what is missing, and touches nothing that is done."""
    recipe = [*TINY, "trainer.max_epochs=4"]
    overrides = [*recipe, "sweep.test=none", "seed=0,1,2", "launcher.parallel=1", SEES % "2"]
    with started(tmp_path, *overrides) as sweep:
        wait_until(lambda: list(tmp_path.glob("outputs/*/*/1/checkpoints/last.ckpt")), "an epoch of trial 1")
        sweep.kill()
        sweep.wait()
    folders = trials_of(tmp_path)
    wait_until(lambda: not processes_of(folders[1]), "the trials die with their sweep")
    before = {path: path.stat().st_mtime_ns for path in folders[0].path.rglob("*")}
    (tmp_path / "fast").touch()
    done = run(tmp_path, *overrides[-4:], *recipe)  # the order of the words makes no other sweep
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path: path.stat().st_mtime_ns for path in folders[0].path.rglob("*")} == before
    assert [trial["state"] for trial in table_of(tmp_path)["trials"]] == ["finished"] * 3
    assert_like_uncut(tmp_path, folders[1], *recipe)
    assert run(tmp_path, *overrides).returncode == 0


def assert_like_uncut(cwd: Path, folder: RunFolder, *recipe: str) -> None:
    """A trial of seed 1 has ended like a run that was never interrupted."""
    uncut = write_run(cwd / "uncut", [*recipe, "seed=1"])
    train_all([uncut], 1)
    assert difference(uncut, folder) <= 1e-12


@pytest.mark.full
def test_stopped_sweep_resumed(tmp_path: Path) -> None:
    """Every trial saves a checkpoint, and goes on exactly."""
    recipe = [*TINY, "trainer.max_epochs=20"]
    overrides = [*recipe, "seed=0,1", "trainer.devices=1", SEES % "5", "sweep.name=two"]
    with started(tmp_path, *overrides) as sweep:
        wait_until(lambda: len(list(tmp_path.glob("outputs/*/*/*/metrics.csv"))) == 2, "both trials train")
        sweep.send_signal(signal.SIGINT)
        out, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 75, out
    folders = trials_of(tmp_path)
    assert [folder.read_status()["state"] for folder in folders] == ["stopped", "stopped"]
    (tmp_path / "fast").touch()
    run(tmp_path, *overrides, code=0)
    assert_like_uncut(tmp_path, folders[1], *recipe)


@pytest.mark.full
def test_failed_and_stopped_trial_resumed(tmp_path: Path) -> None:
    breaks = "+callbacks.breaks={_target_:tests.support.callbacks.Breaks,seed:0,word:kaputt,epoch:3}"
    recipe = [*TINY, "trainer.max_epochs=5", "seed=0,1", "launcher.parallel=2", "sweep.test=none", SEES % "1", breaks]
    with started(tmp_path, *recipe) as sweep:
        wait_until(lambda: list(tmp_path.glob("outputs/*/*/1/checkpoints/last.ckpt")), "an epoch of trial 1")
        trials_of(tmp_path)[1].request_stop("dull")
        out, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 1, out
    folders = trials_of(tmp_path)
    assert [folder.read_status()["state"] for folder in folders] == ["failed", "stopped"]
    for name in ("mended", "fast"):
        (tmp_path / name).touch()
    run(tmp_path, *recipe, code=0)
    assert ", resumed" in (folders[0].path / "output.log").read_text()
    assert_like_uncut(tmp_path, folders[1], *TINY, "trainer.max_epochs=5")


@pytest.mark.full
def test_a_second_ctrl_c_leaves_at_once_and_no_process_stays(tmp_path: Path) -> None:
    with started(tmp_path, *TINY, "trainer.max_epochs=20", "seed=0,1", SEES % "3600") as sweep:
        facts = "outputs/*/*/*/seen.json"
        wait_until(lambda: ["sleeps" in path.read_text() for path in tmp_path.glob(facts)] == [True] * 2, "both sleep")
        sweep.send_signal(signal.SIGINT)
        time.sleep(1)
        assert sweep.poll() is None  # its trials are in the middle of something
        sweep.send_signal(signal.SIGINT)
        out, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 130, out
    wait_until(lambda: not any(processes_of(folder) for folder in trials_of(tmp_path)), "the end of them all")

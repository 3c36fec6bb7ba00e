"""Sweeps that are killed, broken or stopped by real signals: no process stays, nothing is lost, and they resume."""

import os
import signal
import time
from pathlib import Path

import pytest

from lockstep.launch import worker
from tests.support.callbacks import SEES
from tests.support.harness import PATIENCE_S, difference, train_all, wait_until, write_run
from tests.support.sweeps import TINY, processes_of, run, started, table_of, trials_of

pytestmark = pytest.mark.processes


@pytest.mark.full
def test_a_broken_and_a_killed_trial_are_told_at_once_and_end_nothing_but_themselves(tmp_path: Path) -> None:
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
    assert out.index("Trial 0 failed: RuntimeError: kaputt") < out.index("Trial 1 failed: the process of the trial was")
    assert out.index("Trial 1 failed") < out.index("Trial 2 finished")
    rows = {trial["trial"]: trial for trial in table_of(tmp_path)["trials"]}
    assert [rows[number]["state"] for number in range(3)] == ["failed", "failed", "finished"]
    assert "kaputt" in rows[0]["reason"]
    assert "SIGKILL" in rows[1]["reason"]
    assert "test/accuracy" not in rows[2]  # a setting with a failed seed is not the best one


def test_a_killed_sweep_goes_on_with_what_is_missing_and_touches_nothing_that_is_done(tmp_path: Path) -> None:
    recipe = [*TINY, "trainer.max_epochs=4"]
    overrides = [*recipe, "sweep.test=none", "seed=0,1,2", "launcher.parallel=1", SEES % "2"]
    with started(tmp_path, *overrides) as sweep:
        wait_until(lambda: list(tmp_path.glob("outputs/*/*/1/checkpoints/last.ckpt")), "an epoch of trial 1")
        sweep.send_signal(signal.SIGKILL)
        sweep.wait()
    folders = trials_of(tmp_path)
    wait_until(lambda: not processes_of(folders[1]), "the trials die with their sweep")
    before = {path: path.stat().st_mtime_ns for path in folders[0].path.rglob("*")}
    (tmp_path / "fast").touch()
    done = run(tmp_path, *overrides[-4:], *recipe)  # the order of the words makes no other sweep
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same command again" not in done.stdout
    assert "Resuming" in done.stdout
    assert "1 of 3 trials are done" in done.stdout
    assert "Trial 0" not in done.stdout
    assert {path: path.stat().st_mtime_ns for path in folders[0].path.rglob("*")} == before
    assert [trial["state"] for trial in table_of(tmp_path)["trials"]] == ["finished"] * 3
    uncut = write_run(tmp_path / "uncut", [*recipe, "seed=1"])
    assert worker.run_here(worker.Job(worker.TRAIN, str(uncut.path), {"command": "", "has_test": False}), None) == 0
    assert difference(uncut, folders[1]) <= 1e-12
    again = run(tmp_path, *overrides)
    assert (again.returncode, "All 3 trials" in again.stdout) == (0, True)


@pytest.mark.full
def test_a_sweep_that_is_asked_to_stop_saves_every_trial_and_goes_on_exactly(tmp_path: Path) -> None:
    recipe = [*TINY, "trainer.max_epochs=20"]
    overrides = [*recipe, "seed=0,1", "trainer.devices=1", SEES % "5", "sweep.name=two"]
    with started(tmp_path, *overrides) as sweep:
        wait_until(lambda: len(list(tmp_path.glob("outputs/*/*/*/metrics.csv"))) == 2, "both trials train")
        sweep.send_signal(signal.SIGINT)
        out, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 75, out
    assert "Stopping all trials, each with a checkpoint: signal SIGINT" in out
    assert "Not all trials are done: the same command again resumes the sweep." in out
    folders = trials_of(tmp_path)
    assert [folder.read_status()["state"] for folder in folders] == ["stopped", "stopped"]
    (tmp_path / "fast").touch()
    done = run(tmp_path, *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    uncut = write_run(tmp_path / "uncut", [*recipe, "seed=1"])
    assert worker.run_here(worker.Job(worker.TRAIN, str(uncut.path), {"command": "", "has_test": False}), None) == 0
    assert difference(uncut, folders[1]) <= 1e-12


@pytest.mark.full
def test_a_trial_that_failed_goes_on_from_its_checkpoint_and_another_one_is_stopped_alone(tmp_path: Path) -> None:
    breaks = "+callbacks.breaks={_target_:tests.support.callbacks.Breaks,seed:0,word:kaputt,epoch:3}"
    recipe = [*TINY, "trainer.max_epochs=5", "seed=0,1", "launcher.parallel=2", "sweep.test=none", SEES % "1", breaks]
    with started(tmp_path, *recipe) as sweep:
        wait_until(lambda: list(tmp_path.glob("outputs/*/*/1/checkpoints/last.ckpt")), "an epoch of trial 1")
        trials_of(tmp_path)[1].request_stop("dull")
        out, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 1, out
    folders = trials_of(tmp_path)
    assert [folder.read_status()["state"] for folder in folders] == ["failed", "stopped"]
    (tmp_path / "mended").touch()
    (tmp_path / "fast").touch()
    done = run(tmp_path, *recipe)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", resumed" in (folders[0].path / "output.log").read_text()
    alone = [write_run(tmp_path / f"{seed}", [*TINY, "trainer.max_epochs=5", f"seed={seed}"]) for seed in (0, 1)]
    train_all(alone, 1)
    assert max(difference(one, other) for one, other in zip(alone, folders, strict=True)) <= 1e-12


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

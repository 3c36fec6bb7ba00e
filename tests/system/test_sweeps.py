"""Sweeps in real processes: parallel trials on separate devices, and their table.

Refusals and every way to end are tested as well.
"""

import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from lockstep.config import overrides
from lockstep.config.errors import ConfigError
from lockstep.runs.folder import RunFolder
from tests.support.callbacks import SEES
from tests.support.harness import (
    PATIENCE_S,
    difference,
    train_all,
    wait_until,
    write_run,
)
from tests.support.sweeps import (
    TINY,
    overlap,
    processes_of,
    run,
    seen,
    started,
    table_of,
    tree_of,
    trials_of,
)

pytestmark = pytest.mark.processes


@pytest.mark.full
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_four_trials_on_two_cores(tmp_path: Path) -> None:
    """They never share a core, and equal those that run alone; the best setting is tested."""
    texts = [*TINY, "optimizer.lr=0.01,0.1", "seed=0,1", "launcher.parallel=2", SEES % "0"]
    run(tmp_path, *texts, OMP_NUM_THREADS=None, code=0)
    folders = trials_of(tmp_path)
    facts = [seen(folder) for folder in folders]
    assert [each["threads"] for each in facts] == [len(each["cores"]) for each in facts]
    assert len({each["parent"] for each in facts}) == 1  # which has imported torch once for all
    beside = [
        (one, other) for one, other in itertools.combinations(facts, 2) if overlap(one, other)
    ]
    assert beside
    assert not any(set(one["cores"]) & set(other["cores"]) for one, other in beside)
    table = table_of(tmp_path)
    # the test set is for the chosen setting alone, and for all of its seeds
    tested = {
        trial["trial"]: trial["test/accuracy"]
        for trial in table["trials"]
        if trial["test/accuracy"] is not None
    }
    assert list(tested) == table["best_trials"] == table["groups"][0]["trials"]
    each = itertools.product((0.01, 0.1), range(2))
    alone = [
        write_run(tmp_path / f"{lr} {seed}", [*TINY, f"optimizer.lr={lr}", f"seed={seed}"])
        for lr, seed in each
    ]
    train_all(alone, 1)
    assert max(difference(one, other) for one, other in zip(alone, folders, strict=True)) <= 1e-12
    best, known = (runs[table["best_trials"][0]] for runs in (folders, alone))
    assert best.read_summary()["test_accuracy"] == known.read_summary()["test_accuracy"]


@pytest.mark.full
def test_tested_trials_of_two_commands(tmp_path: Path) -> None:
    for texts, tested in (
        (["optimizer.lr=0.1", "sweep.test=none"], []),
        (["optimizer.lr=0.0000001"], [0]),
        (["optimizer.lr=0.0000001", "sweep.test=all"], [0, 1]),
    ):
        more = (
            "model.dropout=0",
            "trainer.max_epochs=5",
            "sweep.name=two",
            "launcher.parallel=1",
            *texts,
        )
        run(tmp_path, *TINY, *more, code=0)
        trials = table_of(tmp_path)["trials"]
        assert (
            sorted(trial["trial"] for trial in trials if trial.get("test/accuracy") is not None)
            == tested
        )
        # as if it had been killed after its summary
        trials_of(tmp_path)[0].update_status(state="training")
    assert table_of(tmp_path)["best_trials"] == [0]


@pytest.mark.full
def test_changed_or_locked_sweep(tmp_path: Path) -> None:
    words = (*TINY, "seed=0", "sweep.name=one", "launcher.parallel=1")
    run(tmp_path, *words, code=0)
    with RunFolder(tree_of(tmp_path)).lock():
        done = run(tmp_path, *words)
    assert (done.returncode, "another process" in done.stderr) == (2, True)
    (folder,) = trials_of(tmp_path)
    folder.config.write_text(
        folder.config.read_text().replace("label_smoothing: 0.1", "label_smoothing: 0.2")
    )
    done = run(tmp_path, *words)
    assert (done.returncode, "task.label_smoothing" in done.stderr) == (2, True)


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("launcher.parallel=1,2", "launcher.parallel"),
        ("resume=somewhere", "remove -m"),
        ("optimizer.lr=interval(0.1,1)", "needs a search"),
        ("search=tpe optimizer.lr=interval(1,0.1)", "ends before it begins"),
        ("hydra/launcher=basic", "hydra/launcher"),
        ("hydra/sweeper=optuna optimizer.lr=0.1", "hydra/sweeper=optuna"),
        (
            "cluster=slurm cluster.time_min=10 trainer.devices=1 "
            "search=random optimizer.lr=interval(0.01,0.1)",
            "maximum number of parallel jobs",
        ),
        ("cluster=slurm cluster.time_min=1,2", "all jobs of a sweep share it"),
    ],
)
def test_sweep_errors(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        overrides.check([*TINY, *text.split()], is_multirun=True)


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("launcher.parallel=99", "launcher.parallel=99"),
        ("search=tpe", "needs an interval"),
        ("scale_with_workers=true", "trainer.devices"),
    ],
)
def test_sweep_refused(tmp_path: Path, text: str, error: str) -> None:
    """No trial starts."""
    done = run(tmp_path, *TINY, *text.split(), code=2)
    assert error in done.stderr
    assert not list(tmp_path.glob("outputs/*/*/*/status.json"))


# -- killed, broken or stopped: no process stays, and they resume ---------------


@pytest.mark.full
def test_broken_and_killed_trial(tmp_path: Path) -> None:
    """They end nothing but themselves."""
    breaks = "+callbacks.breaks={_target_:tests.support.callbacks.Breaks,seed:0,word:kaputt}"
    overrides = [
        *TINY,
        "trainer.devices=2",
        "seed=0,1,2",
        breaks,
        SEES % "3",
        "trainer.max_epochs=3",
    ]
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
    overrides = [*recipe, "sweep.test=none", "seed=0,1,2", "launcher.parallel=1", SEES % "1"]
    with started(tmp_path, *overrides) as sweep:
        wait_until(
            lambda: list(tmp_path.glob("outputs/*/*/1/checkpoints/last.ckpt")),
            "an epoch of trial 1",
        )
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
def test_failed_and_stopped_trial_resumed(tmp_path: Path) -> None:
    breaks = (
        "+callbacks.breaks={_target_:tests.support.callbacks.Breaks,seed:0,word:kaputt,epoch:3}"
    )
    recipe = [
        *TINY,
        "trainer.max_epochs=5",
        "seed=0,1",
        "launcher.parallel=2",
        "sweep.test=none",
        SEES % "1",
        breaks,
    ]
    with started(tmp_path, *recipe) as sweep:
        wait_until(
            lambda: list(tmp_path.glob("outputs/*/*/1/checkpoints/last.ckpt")),
            "an epoch of trial 1",
        )
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
def test_ctrl_c_twice(tmp_path: Path) -> None:
    with started(tmp_path, *TINY, "trainer.max_epochs=20", "seed=0,1", SEES % "3600") as sweep:
        facts = "outputs/*/*/*/seen.json"
        wait_until(
            lambda: ["sleeps" in path.read_text() for path in tmp_path.glob(facts)] == [True] * 2,
            "both sleep",
        )
        sweep.send_signal(signal.SIGINT)
        time.sleep(1)
        assert sweep.poll() is None  # its trials are in the middle of something
        sweep.send_signal(signal.SIGINT)
        out, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 130, out
    wait_until(
        lambda: not any(processes_of(folder) for folder in trials_of(tmp_path)),
        "the end of them all",
    )

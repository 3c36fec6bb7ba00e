"""Processes are signalled, stopped, killed and resumed; none stays alive, and nothing is lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.runs.folder import EXIT_STOPPED
from tests.support.exact import trained
from tests.support.harness import ROOT, SMALL, difference, wait_until
from tests.support.trainings import is_alive, training

pytestmark = pytest.mark.processes
LONG = (*SMALL, "data.train_size=301", "trainer.max_epochs=500")


def assert_nothing_alive(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), "workers gone")


# SIGTERM and SIGINT to the parent are in the chain below, SIGUSR1 in test_slurm_jobs.py
@pytest.mark.parametrize(
    ("number", "target"),
    [
        (signal.SIGINT, "rank 0"),
        pytest.param(signal.SIGHUP, "parent", marks=pytest.mark.full),
    ],
)
def test_signal_to_anyone(tmp_path: Path, number: signal.Signals, target: str) -> None:
    with training(tmp_path, *LONG, "trainer.devices=2") as run:
        run.wait_for_step(2)
        workers = run.workers()
        os.kill(run.process.pid if target == "parent" else workers[0], number)
        assert run.exit_code() == EXIT_STOPPED
        assert_nothing_alive(workers)
        status = run.folder.read_status()
        assert (status["state"], status["reason"]) == ("stopped", f"signal {number.name}")
        assert run.folder.last_checkpoint.exists()


@pytest.mark.full
def test_nohup(tmp_path: Path) -> None:
    """As nohup does."""
    with training(tmp_path, *LONG, "trainer.devices=2", ignores_hangups=True) as run:
        run.wait_for_step(2)
        for pid in [run.process.pid, *run.workers()]:
            os.kill(pid, signal.SIGHUP)
        run.wait_for_step(run.folder.read_status()["step"] + 3)  # would have stopped within two
        run.process.send_signal(signal.SIGTERM)
        assert run.exit_code() == EXIT_STOPPED
        assert run.folder.read_status()["reason"] == "signal SIGTERM"


@pytest.mark.full
@pytest.mark.parametrize(
    ("hook", "step", "code"),
    [("on_train_start", 0, EXIT_STOPPED), ("on_test_start", 10, 0)],
    ids=["training", "test"],
)
def test_signal_to_rank_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str, step: int, code: int
) -> None:
    """Lightning's own handler would wait there for the other rank, which does not come."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    settings = (
        f"_target_:tests.support.callbacks.SendsSignal,hook:{hook},step:{step},"
        "rank:1,number:SIGTERM"
    )
    with training(
        tmp_path, *SMALL, "trainer.devices=2", f"+callbacks.terminated={{{settings}}}"
    ) as run:
        assert run.exit_code() == code, run.log.read_text()
        assert (run.folder.path / "signalled").exists()


def test_time_limit(tmp_path: Path) -> None:
    with training(tmp_path, *LONG, "trainer.max_time_s=1") as run:
        assert run.exit_code() == 75  # scripts of users and schedulers know it
        assert run.folder.read_status()["reason"] == "time limit, trainer.max_time_s=1"


def test_stops_and_resumes(tmp_path: Path, figure: Any) -> None:
    """By SIGTERM, SIGINT, kill -9 and the STOP file; the last part runs to the end."""
    recipe = [
        *SMALL,
        "data.train_size=150",
        "trainer.max_epochs=15",
        "trainer.accumulate_grad_batches=2",
    ]
    alone = trained(tmp_path / "alone", recipe)
    chain = tmp_path / "chain"
    chain.mkdir()
    cuts = ((2, signal.SIGTERM), (3, signal.SIGINT), (2, signal.SIGKILL), (1, None))
    steps: list[int] = []
    for num_workers, number in cuts:
        how = recipe if not steps else ["resume=outputs/latest"]
        with training(chain, *how, f"trainer.devices={num_workers}") as run:
            run.wait_for_step((steps[-1] if steps else 0) + 13)
            if number is not None:
                run.process.send_signal(number)
            else:
                stop = [sys.executable, "-m", "lockstep.cli.main", "stop", "latest"]
                subprocess.run(stop, check=True, cwd=chain, capture_output=True)
            workers = run.workers()
            assert run.exit_code() == (-number if number == signal.SIGKILL else EXIT_STOPPED)
            assert_nothing_alive(workers)
            steps.append(run.folder.read_status()["step"])
    with training(chain, "resume=outputs/latest") as run:
        assert run.exit_code() == 0, run.log.read_text()
        folder = run.folder
    worst = difference(alone, folder)
    figure(f"cut at steps {steps}, largest difference to one process {worst:.1e}")
    assert worst <= 1e-12
    # each validated once
    assert [int(row["epoch"]) for row in folder.read_metrics()] == list(range(1, 16))

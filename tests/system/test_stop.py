"""Processes are signalled, stopped, killed and resumed; none stays alive, and nothing is lost."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.runs.folder import EXIT_STOPPED
from tests.support.harness import ROOT, SMALL, difference, train_all, wait_until, write_run
from tests.support.trainings import is_alive, training

pytestmark = pytest.mark.processes
LONG = (*SMALL, "data.train_size=301", "trainer.max_epochs=500")


def assert_nothing_alive(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), "workers gone")


# SIGTERM and SIGINT to the parent are in the chain below
@pytest.mark.parametrize(
    ("number", "target"), [(signal.SIGINT, "rank 0"), (signal.SIGUSR1, "rank 1"), (signal.SIGHUP, "parent")]
)
def test_a_signal_to_anyone_stops_all_with_a_checkpoint(tmp_path: Path, number: signal.Signals, target: str) -> None:
    with training(tmp_path, *LONG, "trainer.devices=2") as run:
        run.wait_for_step(2)
        workers = run.workers()
        os.kill({"parent": run.process.pid, "rank 0": workers[0], "rank 1": workers[1]}[target], number)
        assert run.exit_code() == EXIT_STOPPED
        assert_nothing_alive(workers)
        status = run.folder.read_status()
        assert status["state"] == "stopped"
        assert status["reason"] == f"signal {number.name}"
        assert run.folder.last_checkpoint.exists()
        assert f"resume={run.folder.path.relative_to(tmp_path)}" in run.log.read_text()


@pytest.mark.full
def test_a_hangup_that_was_ignored_at_the_start_stays_ignored(tmp_path: Path) -> None:
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
def test_sigquit_aborts(tmp_path: Path) -> None:
    with training(tmp_path, *LONG) as run:
        run.wait_for_step(2)
        workers = run.workers()
        run.process.send_signal(signal.SIGQUIT)
        assert run.exit_code() == 130
        assert_nothing_alive(workers)
        assert run.folder.read_status()["reason"] == "aborted by SIGQUIT"


@pytest.mark.full
def test_a_signal_in_the_first_moments_is_neither_lost_nor_deadly(tmp_path: Path) -> None:
    with training(tmp_path, *LONG, "trainer.devices=2") as run:
        wait_until(lambda: len(run.workers()) == 2, "workers started")
        run.process.send_signal(signal.SIGTERM)
        assert run.exit_code() == EXIT_STOPPED
        assert run.folder.last_checkpoint.exists()


@pytest.mark.full
@pytest.mark.parametrize(("in_test", "code", "state"), [(False, EXIT_STOPPED, "stopped"), (True, 0, "finished")])
def test_a_signal_to_one_rank_while_it_is_alone_hangs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_test: bool, code: int, state: str
) -> None:
    """Lightning's own handler would wait there for the other rank, which does not come."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    arguments = f"_target_:tests.support.callbacks.Terminated,rank:1,in_test:{str(in_test).lower()}"
    callback = f"+callbacks.terminated={{{arguments}}}"
    with training(tmp_path, *SMALL, "trainer.devices=2", callback) as run:
        assert run.exit_code() == code, run.log.read_text()
        assert run.folder.read_status()["state"] == state


def test_the_time_limit_stops_the_run(tmp_path: Path) -> None:
    with training(tmp_path, *LONG, "trainer.max_time_s=1") as run:
        assert run.exit_code() == EXIT_STOPPED
        assert run.folder.read_status()["reason"] == "time limit, trainer.max_time_s=1"
        command, hint = run.log.read_text().splitlines()[-2:]
    assert command.startswith("  lockstep train resume=")
    assert hint == "The time limit applies again; add trainer.max_time_s=null to remove it"


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.full)])
def test_kill_9_of_a_rank_ends_the_run_and_is_named(tmp_path: Path, rank: int) -> None:
    with training(tmp_path, *LONG, "trainer.devices=2") as run:
        run.wait_for_step(2)
        workers = run.workers()
        os.kill(workers[rank], signal.SIGKILL)
        assert run.exit_code() == 1
        assert_nothing_alive(workers)
        assert f"rank {rank} of 2 was ended by SIGKILL on {socket.gethostname()}" in run.log.read_text()[-400:]
        assert run.folder.read_status()["state"] == "failed"


@pytest.mark.full
def test_kill_9_of_the_parent_leaves_no_orphans_and_a_run_to_resume(tmp_path: Path, figure: Any) -> None:
    recipe = [*SMALL, "trainer.max_epochs=12"]
    alone = write_run(tmp_path / "alone", recipe)
    train_all([alone], 1)
    with training(tmp_path, *recipe, "trainer.devices=2") as run:
        run.wait_for_step(12)
        workers, folder = run.workers(), run.folder
        run.process.kill()
        assert run.exit_code() == -signal.SIGKILL
        assert_nothing_alive(workers)
        assert folder.read_status()["state"] == "no signal"
    with training(tmp_path, f"resume={folder.path}", "trainer.devices=1") as run:
        assert run.exit_code() == 0, run.log.read_text()
    worst = difference(alone, folder)
    figure(f"largest difference to one process {worst:.1e}")
    assert worst <= 1e-12


@pytest.mark.full
def test_a_frozen_rank_ends_the_run_after_the_timeout(tmp_path: Path) -> None:
    with training(tmp_path, *LONG, "trainer.devices=2", "strategy.timeout_s=20") as run:  # it is waited for
        run.wait_for_step(2)
        workers = run.workers()
        os.kill(workers[1], signal.SIGSTOP)
        assert run.exit_code() == 1
        assert_nothing_alive(workers)
        host = socket.gethostname()
        told = rf"rank 1 of 2 on {host} \(pid {workers[1]}\) has been silent since [\d:]+, for \d+ s: "
        reason = run.folder.read_status()["reason"]
        assert re.fullmatch(told + f"it was killed, is stopped or hangs, or {host} is down or cut off", reason)
        assert reason in run.log.read_text()
        assert "rank 0 of 2 waited for it: " in run.folder.failure.read_text()


def test_a_chain_of_2_3_and_1_processes_ends_where_one_would(tmp_path: Path, figure: Any) -> None:
    """Cut by SIGTERM, by SIGINT and by the STOP file; the last part runs to the end."""
    recipe = [*SMALL, "data.train_size=150", "trainer.max_epochs=12", "trainer.accumulate_grad_batches=2"]
    alone = write_run(tmp_path / "alone", recipe)
    train_all([alone], 1)
    chain = tmp_path / "chain"
    chain.mkdir()
    cuts: list[tuple[int, signal.Signals | None]] = [(2, signal.SIGTERM), (3, signal.SIGINT), (1, None)]
    steps = []
    for num_workers, number in cuts:
        how = recipe if not steps else ["resume=outputs/latest"]
        with training(chain, *how, f"trainer.devices={num_workers}") as run:
            run.wait_for_step((steps[-1] if steps else 0) + 13)
            if number is not None:
                run.process.send_signal(number)
            else:
                stop = [sys.executable, "-m", "lockstep.cli.main", "stop", "latest"]
                subprocess.run(stop, check=True, cwd=chain, capture_output=True)
            assert run.exit_code() == EXIT_STOPPED
            steps.append(run.folder.read_status()["step"])
    with training(chain, "resume=outputs/latest") as run:
        assert run.exit_code() == 0, run.log.read_text()
        folder = run.folder
    worst = difference(alone, folder)
    figure(f"cut at steps {steps}, largest difference to one process {worst:.1e}")
    assert worst <= 1e-12
    assert [int(row["epoch"]) for row in folder.read_metrics()] == list(range(1, 13))  # each validated once

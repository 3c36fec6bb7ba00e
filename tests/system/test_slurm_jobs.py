"""Jobs of a real SLURM are submitted, cancelled and requeued; bits are those without SLURM."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.runs.folder import EXIT_CONFIG, EXIT_STOPPED, RunFolder
from tests.support.exact import trained
from tests.support.harness import SMALL, difference, wait_until
from tests.support.slurm import ASK_EVERY_S, Slurm, started
from tests.support.slurm_jobs import SLOW, TINY, Shell, Submitted, on_node

pytestmark = pytest.mark.processes


def container(folder: Path) -> str:
    """A container with a python in it, and no scontrol."""
    python = folder / "inside" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return f"cluster.container='env PATH={folder}/inside'"


@pytest.fixture(scope="module")
def shell(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(slurm, tmp_path_factory.mktemp("shell"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run of the interrupted jobs, in one process and in one go."""
    return trained(tmp_path_factory.mktemp("alone") / "run", TINY)


@pytest.fixture(scope="module", autouse=True)
def time_limited(request: pytest.FixtureRequest, shell: Shell) -> Submitted | None:
    """A job that reaches its limit of a minute.

    SLURM looks every 30 s, so it is begun first and looked at last.
    """
    if not any(
        item.get_closest_marker("full")
        for item in request.session.items
        if item.path == request.path
    ):
        return None  # `make test` does not look
    return shell.submit(
        *TINY, SLOW % 5, "cluster.time_min=1", "cluster.warn_s=55", on_node("n2"), "name=limited"
    )


@pytest.fixture(scope="module")
def cut(shell: Shell, slurm: Slurm, time_limited: Submitted) -> dict[str, Submitted]:
    """Jobs in the middle of their training, each interrupted in a different way.

    They begin together, because most of the time they wait.
    """
    partition = (
        "PartitionName=grace",
        "Nodes=n1",
        "PriorityTier=1",
        "PreemptMode=REQUEUE",
        "GraceTime=60",
    )
    slurm.run("scontrol", "create", *partition)
    overrides: dict[str, tuple[str, ...]] = {
        "preempted": (on_node("n1"),),
        "grace": (on_node("n1"), "cluster.partition=grace", "trainer.devices=2"),
        "cancelled": (on_node("n2"),),
        "inside": (on_node("n2"), container(shell.cwd)),
    }
    runs = {
        name: shell.submit(*TINY, SLOW % 4, *words, f"name={name}")
        for name, words in overrides.items()
    }
    for run in runs.values():
        run.wait_for_step(1)
    slurm.sbatch("true", "--partition=high", "--nodelist=n1", "--exclusive")
    slurm.run("scancel", "--signal=USR1", runs["inside"].id)  # as SLURM warns of the time limit
    shell.jobs("cancel", runs["cancelled"].folder.path)
    for run in runs.values():
        wait_until(
            lambda run=run: "requeued" in run.log or "cancelled" in run.log,
            f"{run.folder.path} is cut",
        )
    return runs


def test_training_two_nodes(shell: Shell, tmp_path: Path, figure: Any) -> None:
    alone = trained(tmp_path / "alone", SMALL)
    run = shell.submit(*SMALL, "trainer.num_nodes=2", "trainer.devices=2", "name=four")
    run.wait()
    assert run.folder.read_summary()["workers"] == 4
    figure(f"2 nodes x 2 processes against 1: {difference(alone, run.folder):.1e}")
    assert difference(alone, run.folder) <= 1e-12


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "reason", "exactness"),
    [
        ("preempted", "SIGTERM: the job is requeued if it was preempted", 0),  # by SLURM itself
        ("grace", "SIGTERM: the job is requeued if it was preempted", 1e-12),  # two workers
        ("inside", "time limit: the job is requeued", 0),
    ],
)
def test_requeued_job(
    cut: dict[str, Submitted],
    shell: Shell,
    alone: RunFolder,
    name: str,
    reason: str,
    exactness: float,
) -> None:
    """It is waited for over the requeue, and ends exactly."""
    run = cut[name]
    assert shell.jobs("wait", run.id).stdout.split("\t")[:2] == [run.id, "completed"]
    assert int(run.slurm.show(run.id)["Restarts"]) == 1
    assert reason in run.log
    assert run.log.count(", resumed") == 1, run.log
    assert difference(alone, run.folder) <= exactness


@pytest.mark.full
def test_cancelled_job_requeued(cut: dict[str, Submitted], shell: Shell, alone: RunFolder) -> None:
    run = cut["cancelled"]
    run.wait(state="CANCELLED")
    assert run.folder.last_checkpoint.exists()
    assert shell.jobs("wait", run.id, code=EXIT_STOPPED).stdout.split("\t")[1] == "cancelled"
    first = run.id
    shell.jobs("requeue", first)
    assert run.folder.read_job()["earlier"] == [first]
    run.wait()
    assert run.log.count(", resumed") == 1, run.log
    assert difference(alone, run.folder) == 0


@pytest.mark.full
def test_missing_gpus_in_container(shell: Shell, slurm: Slurm) -> None:
    kept = [override for override in TINY if override != "strategy=cpu"]
    python = f'cluster.setup=["export PATH={Path(sys.executable).parent}:$PATH"]'
    run = shell.submit(
        *kept, "trainer.devices=1", "name=gpu", python, "cluster.container='env INSIDE=1'"
    )
    run.wait(state="FAILED")
    assert slurm.show(run.id)["TresPerNode"] == "gres:gpu:1"  # which are files here
    assert slurm.show(run.id)["ExitCode"] == f"{EXIT_CONFIG}:0"
    assert "cluster.gpus_per_node=1, but SLURM shows 0 GPUs" in run.log


@pytest.mark.full
def test_time_limit(time_limited: Submitted, alone: RunFolder) -> None:
    time_limited.wait()
    # more than once where SLURM happens to look while it starts again
    assert int(time_limited.slurm.show(time_limited.id)["Restarts"]) >= 1
    assert "time limit: the job is requeued" in time_limited.log
    assert difference(alone, time_limited.folder) == 0


# -- jobs that SLURM has forgotten ---------------


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Slurm]:
    with started(has_accounting=True) as running:
        yield running


@pytest.mark.full
def test_states_of_forgotten_jobs(forgetful: Slurm, tmp_path: Path) -> None:
    shell = Shell(forgetful, tmp_path)
    through = shell.submit(*TINY, "trainer.max_epochs=1", "name=through")
    killed = shell.submit(*TINY, SLOW % 60, "name=killed")
    never = shell.submit(*TINY, 'cluster.sbatch=["--begin=now+1hour"]', "name=never")
    forgetful.run("scancel", never.id)
    wait_until(
        lambda: killed.folder.read_status().get("state") == "training",
        "training",
        lambda: killed.log,
    )
    os.kill(killed.folder.read_status()["pid"], signal.SIGKILL)  # as where memory is out
    wait_until(
        lambda: not forgetful.run("squeue", "--noheader", "--states=all").stdout,
        "no job any more",
        every_s=ASK_EVERY_S,
    )
    lines = shell.jobs("list").stdout.splitlines()
    states = dict(line.split()[:2] for line in lines[1:])
    assert states == {through.id: "completed", killed.id: "failed", never.id: "cancelled"}

"""Jobs that SLURM has forgotten: their states come from its database, a real slurmdbd."""

import getpass
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.harness import wait_until
from tests.support.slurm import Slurm, started
from tests.support.slurm_jobs import SLOW, TINY, Shell

pytestmark = [pytest.mark.processes, pytest.mark.full]


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Slurm]:
    with started(has_accounting=True) as running:
        yield running


def test_the_states_of_forgotten_jobs_come_from_the_database(forgetful: Slurm, tmp_path: Path) -> None:
    shell = Shell(forgetful, tmp_path)
    begun = [
        shell.submit(*TINY, "trainer.max_epochs=1", "name=through"),
        shell.submit(*TINY, SLOW % 60, "name=killed"),
        shell.submit(*TINY, 'cluster.sbatch=["--begin=now+1hour"]', "name=never"),
    ]
    through, killed, never = begun
    forgetful.run("scancel", never.id)
    wait_until(lambda: killed.folder.read_status().get("state") == "training", "training", lambda: killed.log)
    os.kill(killed.folder.read_status()["pid"], signal.SIGKILL)  # as where memory is out
    wait_until(lambda: not forgetful.run("squeue", "--noheader", "--states=all").stdout, "no job any more")
    lines = shell.jobs("list").stdout.splitlines()
    states = dict(line.split()[:2] for line in lines[1:])
    assert states == {through.id: "completed", killed.id: "failed", never.id: "cancelled"}
    codes = [shell.jobs("wait", run.id, code=None).returncode for run in begun]
    assert codes[0] == 0
    assert all(codes[1:])


def test_the_partitions_of_a_cluster_are_shown_with_the_limits_of_the_account(forgetful: Slurm, tmp_path: Path) -> None:
    forgetful.run("sacctmgr", "--immediate", "add", "account", "lab")
    user = ("user", getpass.getuser(), "account=lab", "MaxJobs=3")
    forgetful.run("sacctmgr", "--immediate", "add", *user)
    forgetful.run("scontrol", "create", "PartitionName=short", "Nodes=n1", "MaxTime=30", "State=DOWN")
    command = (sys.executable, "-m", "lockstep.cli.main", "machine")
    lines = forgetful.run(*command, cwd=tmp_path).stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("partition"))
    assert [line.split() for line in lines[start : start + 4]] == [
        ["partition", "nodes", "idle", "GPUs/node", "cores/node", "mem./node", "limit"],
        ["low", "(default)", "2", "2", "2", "8", "15.6", "GiB", "none"],
        ["high", "2", "2", "2", "8", "15.6", "GiB", "none"],
        ["short", "1", "down", "2", "8", "15.6", "GiB", "30:00"],
    ]
    assert any(line.startswith("Your limits: Account=lab") and "MaxJobs=3" in line for line in lines)
    given = lines[-1].split()[2:]
    assert "cluster.partition=low" in given
    shown = forgetful.run(sys.executable, "-m", "lockstep.cli.main", "train", *given, "dry_run=true", cwd=tmp_path)
    assert "#SBATCH --partition=low" in shown.stdout
    assert "#SBATCH --gpus-per-node=2" in shown.stdout

"""Jobs that SLURM has forgotten: their states come from its database, a real slurmdbd."""

import os
import signal
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

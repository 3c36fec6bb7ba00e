"""A job of a real SLURM whose step is ended, scontrol with it, by the requeue that it has asked for."""

import re
import shutil
from pathlib import Path

import pytest

from tests.support.harness import wait_until
from tests.support.slurm import Slurm
from tests.support.slurm_jobs import SLOW, TINY, Shell, on_node

pytestmark = pytest.mark.processes


def test_a_requeue_that_ends_scontrol_too_is_no_failure_and_warns_of_nothing(slurm: Slurm, tmp_path: Path) -> None:
    there = shutil.which("scontrol")
    slow = tmp_path / "bin" / "scontrol"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\n{there} "$@"; code=$?\nif [ "$1" = requeue ]; then exec sleep 600; fi\nexit $code\n')
    slow.chmod(0o755)
    setup = f'cluster.setup=["export PATH={slow.parent}:$PATH"]'
    run = Shell(slurm, tmp_path).submit(*TINY, SLOW % 4, on_node("n1"), setup, "name=ended")
    run.wait_for_step(1)
    listed = re.split("  +", run.shell.jobs("list").stdout.splitlines()[1])
    assert (listed[1], listed[5]) == ("running", "-")
    slurm.run("scancel", "--signal=USR1", run.id)  # as SLURM warns of the time limit
    wait_until(lambda: int(slurm.show(run.id)["Restarts"]) == 1, "it is requeued")
    run.wait()
    assert "requeued: time limit" in run.log
    assert "not requeued" not in run.log
    assert run.folder.read_status()["state"] == "finished"
    assert "submitit" not in run.log, run.log

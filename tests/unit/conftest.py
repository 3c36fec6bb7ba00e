"""Set-up that tests of several modules share."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.config import overrides
from lockstep.system import hardware, processes
from tests.support.composed import composed_once

LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "GROUP_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_GPUS_ON_NODE",
)


@pytest.fixture(scope="package", autouse=True)
def _checked_here() -> Iterator[None]:
    """Compose configurations of conf/ once, and check them in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overrides, "compose_config", composed_once)
        patch.setattr(processes, "call", lambda function, *arguments: function(*arguments))
        yield


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the folder of the test the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of torchrun and srun."""
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check configurations as on a machine without GPUs."""
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 0)


@pytest.fixture
def run_lockstep(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run a command in this process, and return its exit code."""

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["lockstep", *words])
        return main._command()

    return run

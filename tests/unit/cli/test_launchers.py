"""Commands that start workers themselves run once; others run in each process of a launcher.

Variables of a launcher that are left in a shell do not matter.
"""

import os
import sys

import pytest

import lockstep.benchmark.command
import lockstep.cli.inference
import lockstep.verify.command
from lockstep.cli import main
from lockstep.config.saved import project
from lockstep.system.launcher import outer_world

COMMANDS = {
    "predict": ["predict", "latest", "photos", "--output", "out.csv"],
    "embed": ["embed", "latest", "photos", "--output", "out.npy"],
    "benchmark": ["benchmark"],
    "verify": ["verify"],
}
TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
STEP = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_JOB_NODELIST": "n2",
}
SALLOC = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
ONE_OF_TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that were not refused, in a process without variables of a launcher."""
    for name in {*TORCHRUN, *STEP, *BATCH_SCRIPT, "MASTER_ADDR"}:
        monkeypatch.delenv(name, raising=False)
    found: list[str] = []

    def start(*_: object, **__: object) -> int:
        world = outer_world(os.environ)
        found.append(sys.argv[1])
        return 0 if world is None else world.world_size

    monkeypatch.setattr(lockstep.cli.inference, "infer", start)
    monkeypatch.setattr(lockstep.benchmark.command, "run_benchmark", start)
    monkeypatch.setattr(lockstep.verify.command, "run_verification", start)
    monkeypatch.setattr(project, "enter", lambda *_: None)
    return found


def code_of(monkeypatch: pytest.MonkeyPatch, name: str, variables: dict[str, str]) -> int:
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(sys, "argv", ["lockstep", *COMMANDS[name]])
    return main._command()


@pytest.mark.parametrize(
    ("name", "launcher", "variables"),
    [
        ("benchmark", "torchrun", TORCHRUN),
        ("verify", "torchrun", TORCHRUN),
        ("verify", "srun", STEP),
    ],
)
def test_several_processes_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    started: list[str],
    name: str,
    launcher: str,
    variables: dict[str, str],
) -> None:
    assert code_of(monkeypatch, name, variables) == 2
    assert started == []
    assert f"{launcher} started 2 processes of lockstep {name}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "variables", "num_ranks"),
    [
        ("predict", TORCHRUN, 2),
        ("predict", STEP, 2),
        ("predict", {}, 0),
        ("verify", BATCH_SCRIPT, 0),
        ("verify", SALLOC, 0),
        ("verify", ONE_OF_TORCHRUN, 0),
    ],
)
def test_launcher_processes(
    monkeypatch: pytest.MonkeyPatch,
    started: list[str],
    name: str,
    variables: dict[str, str],
    num_ranks: int,
) -> None:
    assert code_of(monkeypatch, name, variables) == num_ranks
    assert started == [name]

"""Commands that start workers themselves run once; others run in each process of a launcher.

Variables of a launcher that are left in a shell do not matter.
"""

import os
import sys
from collections.abc import Callable

import pytest

import lockstep.benchmark.command
import lockstep.cli.inference
import lockstep.verify.command
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


@pytest.fixture
def started(no_launcher: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that were not refused, in a process without variables of a launcher."""
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


@pytest.mark.parametrize(
    ("name", "variables", "code", "refused"),
    [
        ("benchmark", TORCHRUN, 2, "torchrun"),
        ("verify", TORCHRUN, 2, "torchrun"),
        ("verify", STEP, 2, "srun"),
        ("predict", TORCHRUN, 2, ""),
        ("predict", STEP, 2, ""),
        ("predict", {}, 0, ""),
        ("verify", BATCH_SCRIPT, 0, ""),
        # in a shell of salloc
        (
            "verify",
            {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"},
            0,
            "",
        ),
        ("verify", {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, 0, ""),
    ],
)
def test_launcher_processes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    started: list[str],
    run_lockstep: Callable[..., int],
    name: str,
    variables: dict[str, str],
    code: int,
    refused: str,
) -> None:
    """A command that is not refused returns the number of ranks of its launcher."""
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    assert run_lockstep(*COMMANDS[name]) == code
    assert started == ([] if refused else [name])
    message = f"{refused} started 2 processes of lockstep {name}"
    assert (message in capsys.readouterr().err) == bool(refused)

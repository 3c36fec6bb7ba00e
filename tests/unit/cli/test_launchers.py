"""Commands that start their own workers are started once; others compute in the processes of a launcher.

Variables of a launcher that are left in a shell do not matter.
"""

import argparse
import os
import sys

import pytest

from lockstep.cli import main
from lockstep.system.launcher import outer_world

COMMANDS = {
    "predict": ["predict", "latest", "photos", "--output", "out.csv"],
    "embed": ["embed", "latest", "photos", "--output", "out.npy"],
    "benchmark": ["benchmark"],
    "verify": ["verify"],
}
TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
STEP = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
BATCH_SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "n2"}
SALLOC = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
ONE_OF_TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that were not refused, in a process without variables of a launcher."""
    for name in {*TORCHRUN, *STEP, *BATCH_SCRIPT, "MASTER_ADDR"}:
        monkeypatch.delenv(name, raising=False)
    found: list[str] = []

    def start(arguments: argparse.Namespace) -> int:
        world = outer_world(os.environ)
        found.append(arguments.command)
        return 0 if world is None else world.world_size

    monkeypatch.setattr(main, "_run", start)
    return found


def code_of(monkeypatch: pytest.MonkeyPatch, name: str, variables: dict[str, str]) -> int:
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(sys, "argv", ["lockstep", *COMMANDS[name]])
    return main._command()


@pytest.mark.parametrize(
    ("name", "launcher", "variables"),
    [("benchmark", "torchrun", TORCHRUN), ("verify", "torchrun", TORCHRUN), ("verify", "srun", STEP)],
)
def test_several_processes_are_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    started: list[str],
    name: str,
    launcher: str,
    variables: dict[str, str],
) -> None:
    assert code_of(monkeypatch, name, variables) == 2
    assert started == []
    line = f"lockstep: {launcher} started 2 processes of lockstep {name}, which starts its own workers: "
    assert capsys.readouterr().err.startswith(line)


@pytest.mark.parametrize(
    "variables",
    [{"LOCAL_RANK": ""}, {**TORCHRUN, "RANK": "x"}, {**TORCHRUN, "WORLD_SIZE": "2.5"}, {"SLURM_PROCID": ""}],
)
def test_a_rank_that_is_no_number_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], started: list[str], variables: dict[str, str]
) -> None:
    (wrong,) = (f"{name}={text}" for name, text in variables.items() if not text.isdecimal())
    line = f"lockstep: {wrong} in the environment must be a whole number: unset it, or use torchrun\n"
    for name in COMMANDS:
        assert code_of(monkeypatch, name, variables) == 2
        assert capsys.readouterr().err == line
    monkeypatch.setattr(sys, "argv", ["lockstep", "train"])
    with pytest.raises(SystemExit, match="2"):
        main._command()
    assert (started, capsys.readouterr().err) == ([], line)


@pytest.mark.parametrize("variables", [TORCHRUN, STEP])
def test_several_processes_compute_together(
    monkeypatch: pytest.MonkeyPatch, started: list[str], variables: dict[str, str]
) -> None:
    assert code_of(monkeypatch, "predict", variables) == 2  # ranks
    assert started == ["predict"]


@pytest.mark.parametrize(
    ("name", "variables"),
    [*(("verify", variables) for variables in (BATCH_SCRIPT, SALLOC, ONE_OF_TORCHRUN)), ("predict", {})],
)
def test_a_single_process_starts_its_own_workers(
    monkeypatch: pytest.MonkeyPatch, started: list[str], name: str, variables: dict[str, str]
) -> None:
    assert code_of(monkeypatch, name, variables) == 0
    assert started == [name]

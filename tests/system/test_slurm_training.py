"""`srun python train.py` on a real SLURM of two nodes computes the same numbers.

Parallel steps, data and refused commands are tested as well.
"""

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support.commands import latest
from tests.support.exact import trained
from tests.support.harness import ROOT, SMALL, command, difference, write_run
from tests.support.image_files import write_listed
from tests.support.slurm import Slurm
from tests.support.slurm_jobs import Shell

pytestmark = [pytest.mark.full, pytest.mark.processes]


@pytest.fixture(autouse=True)
def _nodes_have_networks(slurm: Slurm) -> None:
    if not slurm.has_networks:
        pytest.skip("both nodes of this SLURM are one machine")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run of one process without SLURM."""
    return trained(tmp_path_factory.mktemp("alone") / "run", SMALL)


def test_three_tasks_of_two_nodes(
    slurm: Slurm, alone: RunFolder, tmp_path: Path, figure: Any
) -> None:
    task = command(*SMALL, "trainer.worker_weights=[3,1,1]", "strategy.interface=eth0")
    slurm.run(
        "srun", "--nodes=2", "--ntasks=3", *task, cwd=tmp_path, environ={"PYTHONPATH": str(ROOT)}
    )
    assert latest(tmp_path).read_summary()["workers"] == 3
    largest = difference(alone, latest(tmp_path))
    figure(f"largest difference {largest:.1e}")
    assert largest <= 1e-12


# a node of this SLURM has two GPUs on paper; a task sees what it would see on a real one
FINDS = """
import os
from lockstep.config.composing import compose; from lockstep.config.checks import validation
from lockstep.config.checks.workers import resolve_workers
listed = os.listdir
os.listdir = lambda path=".": ["nvidia0", "nvidia1"] if path == "/dev" else listed(path)
found = resolve_workers(validation.check_config(compose.compose_config(["trainer.num_nodes=2"])))
print(os.environ["SLURM_PROCID"], os.environ["CUDA_VISIBLE_DEVICES"], found)
"""


@pytest.mark.parametrize(
    ("options", "visible", "num_local", "gpus"),
    [
        (["--ntasks=4", "--gpus-per-task=1"], ["0", "1", "0", "1"], [2] * 4, ["(0, 0)"] * 4),
        (
            ["--ntasks=4", "--gpus-per-node=2", "--gpu-bind=single:1"],
            ["0", "1", "0", "1"],
            [2] * 4,
            ["(0, 0)"] * 4,
        ),
        (["--ntasks=4", "--gpus-per-node=2"], ["0,1"] * 4, [2] * 4, ["(0, 1)"] * 4),
        (
            ["--ntasks=3", "--gpus-per-task=1"],
            ["0", "1", "0"],
            [2, 2, 1],
            ["(0, 0)", "(0, 0)", "(0,)"],
        ),
    ],
    ids=["per task", "bound", "shared", "unequal nodes"],
)
def test_gpus_of_tasks(
    slurm: Slurm,
    tmp_path: Path,
    options: list[str],
    visible: list[str],
    num_local: list[int],
    gpus: list[str],
) -> None:
    per_node = [] if "--ntasks=3" in options else ["--ntasks-per-node=2"]
    done = slurm.run(
        "srun", "--nodes=2", *per_node, *options, sys.executable, "-c", FINDS, cwd=tmp_path
    )
    expected = [
        f"{rank} {shown} Workers(world_size={len(visible)}, num_local={local}, "
        f"num_nodes=2, gpus={of_node})"
        for rank, (shown, local, of_node) in enumerate(zip(visible, num_local, gpus, strict=True))
    ]
    assert sorted(done.stdout.splitlines()) == expected


HOLDER = """
import os, pathlib, socket, time
from lockstep.system.launcher import step_port
server = socket.create_server(("", step_port(int(os.environ["SLURM_JOB_ID"]), 0)))
pathlib.Path("taken").touch()
time.sleep(600)
"""
HOLD = f"{shlex.join([sys.executable, '-c', HOLDER])} &\nuntil [ -e taken ]; do sleep 0.1; done"


def test_free_port_of_prepared_run(slurm: Slurm, alone: RunFolder, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [*SMALL, "strategy.interface=eth0"])
    task = shlex.join(
        [sys.executable, "-m", "lockstep.launch.prepared_run", str(folder.path), "train"]
    )
    job = slurm.sbatch(f"{HOLD}\nsrun {task}", "--nodes=2", cwd=tmp_path)
    assert slurm.wait(job) == "COMPLETED", (tmp_path / f"slurm-{job}.out").read_text()
    assert folder.read_summary()["workers"] == 2
    assert difference(alone, folder) <= 1e-12
    assert not list(folder.path.glob("rendezvous-*"))


# -- data where the worker is ---------------


RECIPE = (
    *(
        "data=list",
        "data.split_column=split",
        "data.image_size=8",
        "model.width=2",
        "trainer.precision=float64",
    ),
    *("trainer.max_epochs=2", "global_batch_size=5", "strategy=cpu"),
)


@pytest.fixture
def shell(slurm: Slurm, tmp_path: Path) -> Shell:
    return Shell(slurm, tmp_path)


def test_variable_missing_on_node(shell: Shell, tmp_path: Path) -> None:
    run = shell.submit(
        *RECIPE, f"data.file={write_listed(tmp_path)}", "data.copy_to=$NO_SUCH_DISK/copies"
    )
    run.wait(state="FAILED")
    assert shell.slurm.show(run.id)["ExitCode"] == f"{EXIT_CONFIG}:0"
    reason = RunFolder(run.folder.path).read_status()["reason"]
    assert reason.startswith("data.copy_to=$NO_SUCH_DISK/copies: $NO_SUCH_DISK is not set on n")
    assert reason.endswith(": set it there, or give a path")

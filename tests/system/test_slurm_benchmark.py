"""`lockstep benchmark` on the machines of a SLURM allocation and as a job: its parts, then on a real SLURM."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.benchmark import command
from lockstep.benchmark.step import Step
from lockstep.cluster import submission
from lockstep.config.composing import compose
from lockstep.runs.folder import EXIT_CONFIG, EXIT_STOPPED, RunFolder
from tests.support.gpus import PretendedGpus
from tests.support.harness import PATIENCE_S, SMALL, wait_until
from tests.support.slurm import Slurm
from tests.support.slurm_jobs import Shell, Submitted

SMALLER = [text for text in SMALL if not text.startswith("strategy=")]
JOB = ("cluster=slurm", "cluster.time_min=9", "trainer.num_nodes=2")


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, in which srun and others of SLURM record their arguments and variables."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("srun", "sbatch", "scontrol"):
        (folder / name).write_text(f'#!/bin/sh\necho "$@" > {folder}/arguments\nenv > {folder}/variables\nexit 75\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_step_of_several_machines(srun: Path, tmp_path: Path) -> None:
    """It has none of the options of its job."""
    step = Step(RunFolder(tmp_path / "run"), 2, 4, log=tmp_path / "log")
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_GPUS_PER_TASK": "1", "SRUN_CPUS_PER_TASK": "2"}
    step.start({"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "3", **job})
    assert step.poll(PATIENCE_S) == 75
    step.kill()
    words = (srun / "arguments").read_text()
    assert "--overlap --overcommit --cpu-bind=none --mem=0" in words
    assert "--nodes=2 --ntasks=8 --ntasks-per-node=4" in words
    lines = (srun / "variables").read_text().splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert {name for name in names if name.startswith(("SLURM", "SRUN"))} == {"SLURM_JOB_ID"}
    assert "OMP_NUM_THREADS=3" in lines


@pytest.mark.processes
def test_job_of_benchmark(
    srun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It repeats the command in its own folder."""
    monkeypatch.chdir(tmp_path)
    submitted: list[Any] = []
    monkeypatch.setattr(submission, "submit_command", lambda *given, **named: submitted.append(given))
    typed = [*SMALLER, *JOB, "cluster.cpus_per_worker=8", "cluster.gpus_per_node=2", "benchmark.budget_s=7"]
    assert command.run_benchmark(typed, compose.DEFAULT) == 0
    ((folder, words, request),) = submitted
    added = ["cluster=none", "trainer.num_nodes=1", f"hydra.run.dir={folder.path}"]
    assert words[: len(SMALLER) + 5] == ["benchmark", *SMALLER, "benchmark.budget_s=7", *added]
    assert (request.trainer.devices, request.trainer.num_nodes) == (1, 2)
    assert (request.cluster.gpus_per_node, request.strategy.name) == (2, "auto")
    assert command.run_benchmark([*typed, "dry_run=true"], compose.DEFAULT) == 0
    script = capsys.readouterr().out
    for option in ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=8", "--gpus-per-node=2"):
        assert f"#SBATCH {option}\n" in script
    (folder.path / "results.json").touch()
    with pytest.raises(SystemExit, match="2"):
        command.run_benchmark(words[1:], compose.DEFAULT)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["trainer.precision=tf32", "cluster.gpus_per_node=2"], "benchmark.environments.cpu"),
        ([], "sbatch refused the job"),  # this sbatch fails
    ],
)
def test_job_of_benchmark_refused(
    srun: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    error: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        command.run_benchmark([*SMALLER, *JOB, *more], compose.DEFAULT)
    assert error in capsys.readouterr().err
    assert not list(tmp_path.glob("outputs/*/*"))


# -- as a job, and on a real SLURM -------------------------------------------------------------------------------------


@pytest.fixture
def shell(slurm: Slurm, tmp_path: Path) -> Shell:
    if not slurm.has_networks:
        pytest.skip("both nodes of this SLURM are one machine")
    return Shell(slurm, tmp_path)


def words(*overrides: str) -> list[str]:
    return [sys.executable, "-m", "lockstep", "benchmark", *SMALLER, "trainer.max_epochs=2000", *overrides]


def folder_of(cwd: Path) -> RunFolder:
    (path,) = cwd.glob("outputs/*/*_benchmark")
    return RunFolder(path)


def by_name(folder: RunFolder) -> dict[str, dict[str, Any]]:
    found = json.loads((folder.path / "results.json").read_text())
    return {record["name"]: record for record in found["environments"]}


@pytest.mark.full
@pytest.mark.processes
def test_benchmark_job_of_both_machines(shell: Shell, gpus: PretendedGpus, figure: Any) -> None:
    sizes = ("cluster.gpus_per_node=2", "cluster.cpus_per_worker=2", "cluster.memory_gib=8", "benchmark.budget_s=6")
    shell.slurm.run(*words(*JOB, *sizes), cwd=shell.cwd, environ=gpus.environ(2))
    folder = folder_of(shell.cwd)
    job = folder.read_job()["id"]
    shell.jobs("wait", job)
    measured = by_name(folder)
    sizes = {name: (r["state"], r["nodes"], r["workers"], r["global_batch_size"]) for name, r in measured.items()}
    assert sizes == {
        "cpu": ("measured", 1, 1, 16),
        "parallel-cpu": ("measured", 2, 4, 16),
        "gpu": ("measured", 1, 1, 16),
        "multi-gpu": ("measured", 1, 2, 16),
        "parallel-gpu": ("measured", 2, 4, 64),
    }
    figure(", ".join(f"{name} {r['images_per_s']['median']:.0f} images/s" for name, r in measured.items()))
    result = json.loads(shell.jobs("result", job).stdout)
    assert result["nodes"] == "n[1-2]"
    assert "cluster=slurm" in result["command"]  # as it was typed


@pytest.mark.full
@pytest.mark.processes
def test_benchmark_of_allocation(shell: Shell) -> None:
    """From a login node: the first machine of the allocation measures."""
    options = ("salloc", "--nodes=2", "--ntasks-per-node=2")
    shell.slurm.run(*options, *words("benchmark.budget_s=15"), cwd=shell.cwd)
    folder = folder_of(shell.cwd)
    assert by_name(folder)["gpu"]["state"] == "skipped"
    one, other = (RunFolder(folder.path / name) for name in ("cpu", "parallel-cpu"))
    assert other.read_status()["workers"] == 4
    assert one.read_status()["host"] in ("n1", "n2")  # not this machine
    rows = list(zip(one.read_metrics(), other.read_metrics(), strict=False))
    assert rows
    for of_one, of_other in rows:  # the batch of one worker, divided
        assert float(of_other["val/loss"]) == pytest.approx(float(of_one["val/loss"]), abs=1e-9)


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(
    ("interruption", "state", "reason"),
    [
        (["cancel"], "CANCELLED", "cancelled"),
        (["scontrol", "requeue"], "FAILED", "started again by SLURM"),  # as preempted
    ],
    ids=["cancelled", "preempted"],
)
def test_benchmark_job_interrupted(shell: Shell, interruption: list[str], state: str, reason: str) -> None:
    """It reports what it measured, and is not resumed."""
    later = "+benchmark.environments.later={strategy:cpu,devices:1,scale_with_workers:false}"
    shell.slurm.run(*words(*JOB, "benchmark.environments.cpu=null", later, "benchmark.budget_s=500"), cwd=shell.cwd)
    job = Submitted(shell, folder_of(shell.cwd), "")
    run = RunFolder(job.folder.path / "parallel-cpu")
    wait_until(lambda: run.read_status().get("epoch", 0) > 1, "the second epoch", lambda: job.log)
    (shell.jobs if interruption == ["cancel"] else shell.slurm.run)(*interruption, job.id)
    job.wait(state=state)
    shell.jobs("wait", job.id, code=EXIT_STOPPED)
    assert job.folder.read_status()["reason"].startswith(reason)
    states = {name: record["state"] for name, record in by_name(job.folder).items()}
    assert (states["parallel-cpu"], states["later"]) == ("stopped", "skipped")
    shell.jobs("requeue", job.id, code=EXIT_CONFIG)
    assert run.last_checkpoint.exists()
    assert (job.folder.path / "report.pdf").exists()

"""`lockstep benchmark` on the machines of a SLURM allocation and as a job: its parts, then on a real SLURM."""

import json
import os
import sys
from collections.abc import Sequence
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


def test_workers_on_several_machines_are_a_step_without_the_options_of_its_job(srun: Path, tmp_path: Path) -> None:
    step = Step(RunFolder(tmp_path / "run"), 2, 4, log=tmp_path / "log")
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_GPUS_PER_TASK": "1", "SRUN_CPUS_PER_TASK": "2"}
    step.start({"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "3", **job})
    assert step.poll(PATIENCE_S) == 75
    step.kill()
    words = (srun / "arguments").read_text()
    assert "--overlap --overcommit --cpu-bind=none --mem=0" in words
    assert "--nodes=2 --ntasks=8 --ntasks-per-node=4" in words
    assert words.endswith(f"-m lockstep.launch.prepared_run {tmp_path / 'run'} --task train\n")
    lines = (srun / "variables").read_text().splitlines()
    variables = {line.partition("=")[0]: line.partition("=")[2] for line in lines}
    assert {name for name in variables if name.startswith(("SLURM", "SRUN"))} == {"SLURM_JOB_ID"}
    assert variables["OMP_NUM_THREADS"] == "3"


@pytest.mark.processes
def test_a_job_repeats_the_command_in_its_own_folder(
    srun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    submitted: list[Any] = []
    monkeypatch.setattr(submission, "submit_command", lambda *given, **named: submitted.append((*given, named)))
    (tmp_path / "conf").mkdir()
    monkeypatch.setattr(submission, "project_root", lambda: tmp_path)
    typed = [*SMALLER, *JOB, "cluster.cpus_per_worker=8", "cluster.gpus_per_node=2", "benchmark.budget_s=7"]
    assert command.run_benchmark(typed, compose.DEFAULT) == 0
    ((folder, words, request, named),) = submitted
    own = ["cluster=none", "trainer.num_nodes=1", f"hydra.run.dir={folder.path}"]
    own.append(f'hydra.searchpath=["file://{tmp_path}/conf"]')  # behind the copy, which lacks what git ignores
    assert words == ["benchmark", *SMALLER, "benchmark.budget_s=7", *own]
    assert named == {"name": "benchmark", "is_head": True}
    assert (request.trainer.devices, request.trainer.num_nodes) == (1, 2)
    assert (request.cluster.gpus_per_node, request.strategy.name) == (2, "auto")
    assert folder.read_overrides() == typed
    assert command.run_benchmark([*typed, "dry_run=true"], compose.DEFAULT) == 0
    script = capsys.readouterr().out
    for option in ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=8", "--gpus-per-node=2"):
        assert f"#SBATCH {option}\n" in script
    (folder.path / "results.json").touch()
    with pytest.raises(SystemExit, match="2"):
        command.run_benchmark(words[1:], compose.DEFAULT)
    assert "already contains a benchmark: choose a new folder" in capsys.readouterr().err


@pytest.mark.processes
def test_a_job_with_a_wrong_environment_is_not_submitted(
    srun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        command.run_benchmark([*SMALLER, *JOB, "trainer.precision=tf32", "cluster.gpus_per_node=2"], compose.DEFAULT)
    assert "benchmark.environments.cpu: trainer.precision=tf32 needs GPUs" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):  # this sbatch fails
        command.run_benchmark([*SMALLER, *JOB], compose.DEFAULT)
    assert "sbatch refused the job" in capsys.readouterr().err
    assert not list(tmp_path.glob("outputs/*/*"))


@pytest.mark.processes
def test_in_a_shell_of_salloc_the_first_machine_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    class Replaced(Exception):
        pass

    def execute(program: str, words: Sequence[str]) -> None:
        assert (program, words[-3:]) == ("srun", ["lockstep", "benchmark", "benchmark.budget_s=7"])
        assert "--nodes=1" in words
        raise Replaced

    monkeypatch.setattr(os, "execvp", execute)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    with pytest.raises(Replaced):
        command.run_benchmark(["benchmark.budget_s=7"], compose.DEFAULT)


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
def test_a_job_measures_the_cores_and_gpus_of_both_machines(shell: Shell, gpus: PretendedGpus, figure: Any) -> None:
    sizes = ("cluster.gpus_per_node=2", "cluster.cpus_per_worker=2", "cluster.memory_gib=8", "benchmark.budget_s=6")
    done = shell.slurm.run(*words(*JOB, *sizes), cwd=shell.cwd, environ=gpus.environ(2))
    folder = folder_of(shell.cwd)
    job = folder.read_job()["id"]
    assert f"lockstep jobs wait {job}" in done.stdout
    assert [line.split()[0] for line in shell.jobs("list").stdout.splitlines()[1:]] == [job]
    shell.jobs("wait", job)
    assert "parallel-gpu: measured" in Path(folder.read_job()["log"]).read_text()
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
    assert "4 x Pretended GPU" in (folder.path / "parallel-gpu" / "terminal.log").read_text()
    assert shell.jobs("wait", job).stdout.split() == [job, "completed", str(folder.path.relative_to(shell.cwd))]
    result = json.loads(shell.jobs("result", job).stdout)
    assert result["nodes"] == "n[1-2]"
    assert "cluster=slurm" in result["command"]  # as it was typed


@pytest.mark.full
@pytest.mark.processes
def test_an_allocation_is_measured_from_a_login_node(shell: Shell) -> None:
    options = ("salloc", "--nodes=2", "--ntasks-per-node=2")
    done = shell.slurm.run(*options, *words("benchmark.budget_s=15"), cwd=shell.cwd)
    assert "gpu: skipped: needs more GPUs than each of 2 machines has (0)" in done.stdout
    folder = folder_of(shell.cwd)
    two = by_name(folder)["parallel-cpu"]
    assert (two["nodes"], two["workers"]) == (2, 4)
    one, other = (RunFolder(folder.path / name) for name in ("cpu", "parallel-cpu"))
    assert one.read_status()["host"] in ("n1", "n2")  # not this machine
    rows = list(zip(one.read_metrics(), other.read_metrics(), strict=False))
    assert rows
    for of_one, of_other in rows:  # the batch of one worker, divided
        assert float(of_other["val/loss"]) == pytest.approx(float(of_one["val/loss"]), abs=1e-9)


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(
    ("interruption", "state", "restarts", "reason"),
    [
        (["cancel"], "CANCELLED", "0", "cancelled"),
        (["scontrol", "requeue"], "FAILED", "1", "started again by SLURM: a benchmark is not resumed"),  # as preempted
    ],
    ids=["cancelled", "preempted"],
)
def test_an_interrupted_job_reports_what_it_measured_and_is_not_resumed(
    shell: Shell, interruption: list[str], state: str, restarts: str, reason: str
) -> None:
    later = "+benchmark.environments.later={strategy:cpu,devices:1,scale_with_workers:false}"
    shell.slurm.run(*words(*JOB, "benchmark.environments.cpu=null", later, "benchmark.budget_s=500"), cwd=shell.cwd)
    job = Submitted(shell, folder_of(shell.cwd), "")
    run = RunFolder(job.folder.path / "parallel-cpu")
    wait_until(lambda: run.read_status().get("epoch", 0) > 1, "the second epoch", lambda: job.log)
    (shell.jobs if interruption == ["cancel"] else shell.slurm.run)(*interruption, job.id)
    job.wait(state=state)
    shell.jobs("wait", job.id, code=EXIT_STOPPED)
    assert shell.slurm.show(job.id)["Restarts"] == restarts
    assert job.folder.read_status()["reason"] == reason
    found = by_name(job.folder)
    assert (found["parallel-cpu"]["state"], found["parallel-cpu"]["reason"]) == ("stopped", "interrupted")
    assert found["later"]["reason"] == "not started before the interruption"
    assert "submit it again" in shell.jobs("requeue", job.id, code=EXIT_CONFIG).stderr
    assert run.last_checkpoint.exists()
    assert (job.folder.path / "report.pdf").exists()
    assert json.loads(shell.jobs("result", job.id).stdout)["environments"][0]["name"] == "parallel-cpu"

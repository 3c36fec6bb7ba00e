"""`lockstep benchmark`: its numbers are those by hand, and its report has all files.

Real runs are tried on this machine and on a real SLURM.
"""

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.benchmark import command, results
from lockstep.benchmark.environments import Environment, Machines, available_machines, environments
from lockstep.config import overrides
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError
from lockstep.config.schema.configuration import BenchmarkConfig
from lockstep.runs.folder import EXIT_CONFIG, EXIT_STOPPED, RunFolder
from lockstep.system import hardware
from tests.support.commands import Command, output_of
from tests.support.gpus import PretendedGpus
from tests.support.harness import PATIENCE_S, ROOT, SMALL, environ, wait_until
from tests.support.slurm import Slurm
from tests.support.slurm_jobs import Shell, Submitted

DEFAULTS = ("cpu", "parallel-cpu", "gpu", "multi-gpu", "parallel-gpu")
SMALLER = [text for text in SMALL if not text.startswith("strategy=")]


def record(name: str, workers: int, seconds: float, **changes: Any) -> dict[str, Any]:
    """The record of a run with three epochs of 1,000 images that took about so many `seconds`."""
    times = [0.9 * seconds, seconds, 1.05 * seconds]
    return {
        "name": name, "device": "cpu", "state": "measured", "reason": "",
        "nodes": 1, "workers": workers,
        "threads_per_worker": 1, "precision": "float32", "global_batch_size": 64, "epochs": 3,
        "elapsed_s": 60.0, "images_per_s": results.spread([1000 / time for time in times]),
        "epoch_s": results.spread(times), "val_accuracy": 0.9, "test_accuracy": 0.8, **changes,
    }  # fmt: skip


def test_speed_up_single_worker_same_device() -> None:
    records = [
        record("cpu", 1, 1),
        record("gpu", 1, 15, device="gpu"),
        record("two", 2, 10, device="gpu"),
    ]
    assert [results.speed_up(r, records) for r in records] == pytest.approx([1, 1, 1.5])


def found(num_cores: int, num_gpus: int, *texts: str, num_nodes: int = 1) -> dict[str, Environment]:
    config = validation.check_config(compose.compose_config(command.add_benchmark(texts)))
    assert isinstance(config, BenchmarkConfig)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "num_visible_gpus", lambda: num_gpus)
        made = environments(config, Machines(num_cores, num_gpus, num_nodes))
        return {environment.name: environment for environment in made}


@pytest.mark.parametrize(
    ("machines", "more", "expected"),
    [
        (
            (2, 0, 1),
            (),
            {"cpu": (1, 1, 1, 2, 64, 0.1), "parallel-cpu": (2, 1, 2, 1, 64, 0.1)},
        ),
        (
            (1, 1, 1),
            (),
            {"cpu": (1, 1, 1, 1, 64, 0.1), "gpu": (1, 1, 1, 1, 64, 0.1)},
        ),
        (
            (1, 0, 2),  # one core of each machine is enough
            (),
            {"cpu": (1, 1, 1, 1, 64, 0.1), "parallel-cpu": (2, 2, 1, 1, 64, 0.1)},
        ),
        (
            (4, 2, 2),
            (),
            {
                "cpu": (1, 1, 1, 4, 64, 0.1),
                "parallel-cpu": (8, 2, 4, 1, 64, 0.1),
                "gpu": (1, 1, 1, 4, 64, 0.1),
                "multi-gpu": (2, 1, 2, 2, 64, 0.1),
                "parallel-gpu": (4, 2, 2, 2, 256, 0.4),
            },
        ),
        (
            (16, 8, 1),
            (),
            {
                "cpu": (1, 1, 1, 16, 64, 0.1),
                "parallel-cpu": (16, 1, 16, 1, 64, 0.1),
                "gpu": (1, 1, 1, 16, 64, 0.1),
                "multi-gpu": (8, 1, 8, 2, 64, 0.1),
                "parallel-gpu": (8, 1, 8, 2, 512, 0.8),
            },
        ),
        (
            (2, 4, 1),
            ("scale_with_workers=true",),
            {
                "cpu": (1, 1, 1, 2, 64, 0.1),
                "parallel-cpu": (2, 1, 2, 1, 128, 0.2),
                "gpu": (1, 1, 1, 2, 64, 0.1),
                "multi-gpu": (4, 1, 4, 1, 256, 0.4),
                "parallel-gpu": (4, 1, 4, 1, 256, 0.4),
            },
        ),
    ],
)
def test_environments(
    monkeypatch: pytest.MonkeyPatch,
    machines: tuple[int, int, int],
    more: tuple[str, ...],
    expected: dict[str, tuple[float, ...]],
) -> None:
    """Sizes are workers, nodes, workers of a node, threads, batch and rate; others are skipped.

    An allocation is measured on one machine or on all.
    """
    monkeypatch.setattr(shutil, "which", lambda name: name)  # there is srun
    cores, gpus, nodes = machines
    settings = ("global_batch_size=64", "optimizer.lr=0.1", "benchmark.budget_s=7", *more)
    sizes = {}
    for name, environment in found(cores, gpus, *settings, num_nodes=nodes).items():
        config = environment.config
        if environment.skipped:
            continue
        assert config.trainer.max_time_s == 7
        of_trainer = (config.trainer.num_nodes, config.trainer.devices, environment.num_threads)
        sizes[name] = (
            environment.num_workers,
            *of_trainer,
            config.global_batch_size,
            config.optimizer.lr,
        )
    assert sizes == expected


def test_machines_of_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "num_cores", lambda: 16)
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 2)
    job = {"SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}
    assert available_machines(job) == Machines(4, 2, 3)
    assert available_machines({}) == Machines(16, 2, 1)


@pytest.mark.parametrize(
    ("text", "is_benchmark"),
    [
        *(
            ("trainer.devices=2", True),
            ("resume=x", True),
            ("init_from=x", True),
            ("changed_data=accept", True),
        ),
        *(
            ("trainer.num_nodes=2", True),
            ("benchmark.budget_s=3", False),
            ("+benchmark=default", False),
        ),
    ],
)
def test_errors_keys(text: str, is_benchmark: bool) -> None:
    """Those of the environments and of a run in a benchmark, and those of a benchmark elsewhere."""
    chosen = command.add_benchmark([text]) if is_benchmark else [text]
    with pytest.raises(ConfigError, match=text.removeprefix("+").partition("=")[0]):
        overrides.check(chosen, is_multirun=False, is_benchmark=is_benchmark)


@pytest.mark.parametrize(
    ("states", "received", "code"),
    [
        (["measured", "skipped"], 0, 0),
        (["failed", "measured"], 0, 1),
        (["failed"], signal.SIGINT, 130),
    ],
)
def test_exit_code(states: list[str], received: int, code: int) -> None:
    assert command.exit_code([{"state": state} for state in states], received) == code


def test_record_of_a_run(tmp_path: Path) -> None:
    environment = found(2, 0)["cpu"]
    folder = RunFolder(tmp_path)
    folder.write_status(images_per_s=50.0, train_images=100)
    # of the steps so far
    assert results.record(environment, folder, "measured", "")["epoch_s"]["median"] == 2
    folder.metrics.write_text("epoch,images_per_s,val/accuracy\n0,10,0.8\n1,20,0.9\n2,25,0.7\n")
    epochs = results.record(environment, folder, "stopped", "interrupted")
    assert (epochs["epochs"], epochs["val_accuracy"]) == (3, 0.9)
    assert epochs["epoch_s"] == {"median": 5, "low": 4, "high": 10, "count": 3}


def start(cwd: Path, *texts: str) -> Command:
    variables = {**environ(), "PYTHONPATH": str(ROOT)}
    with open(cwd / "log", "wb") as log:
        line = [sys.executable, "-m", "lockstep", "benchmark", *texts]
        return Command(line, cwd, variables, stdout=log, stderr=log)


def folder_of(cwd: Path) -> Path:
    (path,) = cwd.glob("outputs/*/*_benchmark")
    return path


def by_name(cwd: Path) -> dict[str, dict[str, Any]]:
    """The records of the environments."""
    benchmark = json.loads((folder_of(cwd) / "results.json").read_text())
    return {record["name"]: record for record in benchmark["environments"]}


@pytest.mark.full
@pytest.mark.processes
def test_benchmark_of_two_processes(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        *SMALLER,
        "trainer.max_epochs=2000",
        "benchmark.budget_s=4",
        "benchmark.environments.cpu=null",
        "benchmark.environments.parallel-cpu.devices=2",
        "+benchmark.environments.gpus={strategy:ddp,devices:64,scale_with_workers:true}",
    )
    assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
    environments = by_name(tmp_path)
    assert environments["gpus"]["state"] == "skipped"
    two = environments["parallel-cpu"]
    assert (two["state"], two["workers"], two["precision"]) == ("measured", 2, "float64")
    evaluated = output_of(
        tmp_path, "eval", folder_of(tmp_path) / "parallel-cpu", "--devices", "1", "--json"
    )
    assert two["test_accuracy"] == json.loads(evaluated)["metrics"]["accuracy"]
    rows = RunFolder(folder_of(tmp_path) / "parallel-cpu").read_metrics()
    speeds = np.array([float(row["images_per_s"]) for row in rows])
    assert two["epochs"] == len(rows)
    assert two["images_per_s"]["median"] == pytest.approx(np.median(speeds))
    assert two["epoch_s"]["median"] == pytest.approx(np.median(70 / speeds))
    assert (folder_of(tmp_path) / "report.pdf").exists()


@pytest.mark.full
@pytest.mark.processes
def test_benchmark_failed_and_interrupted(tmp_path: Path) -> None:
    """What was measured is kept."""
    one = "={strategy:cpu,devices:1,scale_with_workers:false}"
    process = start(
        tmp_path,
        *(text for text in SMALLER if not text.startswith("model.")),
        *(
            "model._target_=tests.support.networks.FailsOnRank1",
            "+model.hidden=4",
            "trainer.max_epochs=2000",
        ),
        "benchmark.budget_s=100",
        "+benchmark.environments.fails={strategy:cpu,devices:2,scale_with_workers:false}",
        f"+benchmark.environments.works{one}",
        f"+benchmark.environments.later{one}",
        *(f"benchmark.environments.{name}=null" for name in DEFAULTS),
    )

    def trains() -> bool:
        assert process.poll() is None, (tmp_path / "log").read_text()
        places = list(tmp_path.glob("outputs/*/*_benchmark/works"))
        return bool(places) and len(RunFolder(places[0]).read_metrics()) >= 2

    wait_until(trains, "second epoch")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    environments = by_name(tmp_path)
    states = {name: environment["state"] for name, environment in environments.items()}
    assert states == {"fails": "failed", "works": "stopped", "later": "skipped"}
    assert "ZeroDivisionError" in environments["fails"]["reason"]
    assert environments["works"]["images_per_s"]["count"] >= 2


# -- on the machines of a SLURM allocation and as a job --------------------------------------------


JOB = ("cluster=slurm", "cluster.time_min=9", "trainer.num_nodes=2")


@pytest.fixture
def shell(slurm: Slurm, tmp_path: Path) -> Shell:
    if not slurm.has_networks:
        pytest.skip("both nodes of this SLURM are one machine")
    return Shell(slurm, tmp_path)


def words(*overrides: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "lockstep",
        "benchmark",
        *SMALLER,
        "trainer.max_epochs=2000",
        *overrides,
    ]


@pytest.mark.full
@pytest.mark.processes
def test_benchmark_job_of_both_machines(shell: Shell, gpus: PretendedGpus) -> None:
    sizes = (
        "cluster.gpus_per_node=1",
        "cluster.memory_gib=8",
        "trainer.max_epochs=2",
    )
    shell.slurm.run(*words(*JOB, *sizes), cwd=shell.cwd, environ=gpus.environ(1))
    folder = RunFolder(folder_of(shell.cwd))
    job = folder.read_job()["id"]
    shell.jobs("wait", job)
    measured = by_name(shell.cwd)
    keys = ("state", "nodes", "workers", "global_batch_size")
    sizes = {name: tuple(map(record.get, keys)) for name, record in measured.items()}
    assert sizes == {
        "cpu": ("measured", 1, 1, 16),
        "parallel-cpu": ("measured", 2, 2, 16),
        "gpu": ("measured", 1, 1, 16),
        "multi-gpu": ("skipped", None, None, None),
        "parallel-gpu": ("measured", 2, 2, 32),
    }
    assert json.loads(shell.jobs("result", job).stdout)["nodes"] == "n[1-2]"


@pytest.mark.full
@pytest.mark.processes
def test_benchmark_of_allocation(shell: Shell) -> None:
    """From a login node: the first machine of the allocation measures."""
    options = ("salloc", "--nodes=2", "--ntasks-per-node=1")
    shell.slurm.run(*options, *words("benchmark.budget_s=2"), cwd=shell.cwd)
    folder = RunFolder(folder_of(shell.cwd))
    states = {name: record["state"] for name, record in by_name(shell.cwd).items()}
    assert (states["parallel-cpu"], states["gpu"]) == ("measured", "skipped")
    assert RunFolder(folder.path / "parallel-cpu").read_status()["workers"] == 2
    assert RunFolder(folder.path / "cpu").read_status()["host"] in ("n1", "n2")  # not this machine


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
def test_benchmark_job_interrupted(
    shell: Shell, interruption: list[str], state: str, reason: str
) -> None:
    """It reports what it measured, and is not resumed."""
    later = "+benchmark.environments.later={strategy:cpu,devices:1,scale_with_workers:false}"
    shell.slurm.run(
        *words(*JOB, "benchmark.environments.cpu=null", later, "benchmark.budget_s=500"),
        cwd=shell.cwd,
    )
    job = Submitted(shell, RunFolder(folder_of(shell.cwd)))
    run = RunFolder(job.folder.path / "parallel-cpu")
    wait_until(lambda: run.read_status().get("epoch", 0) > 1, "the second epoch", lambda: job.log)
    (shell.jobs if interruption == ["cancel"] else shell.slurm.run)(*interruption, job.id)
    job.wait(state=state)
    shell.jobs("wait", job.id, code=EXIT_STOPPED)
    assert job.folder.read_status()["reason"].startswith(reason)
    states = {name: record["state"] for name, record in by_name(shell.cwd).items()}
    assert (states["parallel-cpu"], states["later"]) == ("stopped", "skipped")
    shell.jobs("requeue", job.id, code=EXIT_CONFIG)

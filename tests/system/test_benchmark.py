"""`lockstep benchmark`: numbers against those by hand, the report's files, and real runs in real processes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from lockstep.benchmark import command, report, results
from lockstep.benchmark.environments import Environment, Machines, available_machines, environments
from lockstep.callbacks.plots import style
from lockstep.config import overrides
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError
from lockstep.config.schema.configuration import BenchmarkConfig
from lockstep.runs.folder import RunFolder
from lockstep.system import hardware
from tests.support.harness import PATIENCE_S, ROOT, SMALL, environ, wait_until

TOOL = os.fspath(Path(sys.executable).parent / "lockstep")
SMALLER = [text for text in SMALL if not text.startswith("strategy=")]


def record(name: str, workers: int, seconds: float, **changes: Any) -> dict[str, Any]:
    """The record of a run with three epochs of 1,000 images that took about so many `seconds`."""
    times = [0.9 * seconds, seconds, 1.05 * seconds]
    return {
        "name": name, "device": "cpu", "state": "measured", "reason": "", "nodes": 1, "workers": workers,
        "threads_per_worker": 1, "precision": "float32", "global_batch_size": 64, "epochs": 3,
        "elapsed_s": 60.0, "images_per_s": results.spread([1000 / time for time in times]),
        "epoch_s": results.spread(times), "val_accuracy": 0.9, **changes,
    }  # fmt: skip


def whole(*records: dict[str, Any], name: str = "digits") -> dict[str, Any]:
    """results.json of these records."""
    return {
        "command": f"lockstep benchmark {name}",
        "date": "2026-11-21 12:00:00+00:00",
        "name": f"{name}_resnet18",
        "settings": {"budget_s": 60.0},
        "nodes": "n[1-2]",
        "environment": {
            **{"cpu": name, "cpu_cores": 2, "gpus": [name, name], "python": "3.12", "commit": "abc"},
            "packages": {"torch": "2.15", "lightning": "2.6", "lockstep": "1.0"},
        },
        "environments": list(records),
    }


SKIPPED = {"name": "gpu", "device": "gpu", "state": "skipped", "reason": "needs more GPUs than this machine has (0)"}


def test_speed_up_single_worker_same_device() -> None:
    records = [record("cpu", 1, 1), record("gpu", 1, 15, device="gpu"), record("two", 2, 10, device="gpu")]
    assert [results.speed_up(r, records) for r in records] == pytest.approx([1, 1, 1.5])


def test_speed_up_missing_single_worker() -> None:
    unmeasured = record("cpu", 1, 10, images_per_s=None)
    assert results.speed_up(record("two", 2, 5), [unmeasured, SKIPPED]) is None
    assert results.speed_up(unmeasured, [record("one", 1, 10)]) is None


def composed(*texts: str) -> BenchmarkConfig:
    config = validation.check_config(compose.compose_config(command.add_benchmark(texts)))
    assert isinstance(config, BenchmarkConfig)
    return config


def errors(*texts: str, is_benchmark: bool = True) -> list[str]:
    try:
        chosen = command.add_benchmark(texts) if is_benchmark else texts
        overrides.check(chosen, is_multirun=False, is_benchmark=is_benchmark)
    except ConfigError as error:
        return str(error).splitlines()
    return []


def found(num_cores: int, num_gpus: int, *texts: str, num_nodes: int = 1) -> dict[str, Environment]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "num_visible_gpus", lambda: num_gpus)
        made = environments(composed(*texts), Machines(num_cores, num_gpus, num_nodes))
        return {environment.name: environment for environment in made}


def test_environments_that_are_not_there_are_skipped_with_the_reason() -> None:
    there = found(2, 0)
    assert [name for name, environment in there.items() if environment.config is not None] == ["cpu", "parallel-cpu"]
    assert there["gpu"].skipped == "needs more GPUs than this machine has (0)"
    one = found(1, 1)
    assert one["parallel-cpu"].skipped == "needs more cores than this machine has (1)"
    assert one["multi-gpu"].skipped == "needs more GPUs than this machine has (1)"
    assert one["gpu"].config is not None


def test_environments_of_an_allocation_use_one_machine_or_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)  # there is srun
    entry = "+benchmark.environments.three={strategy:cpu,devices:1,num_nodes:3,scale_with_workers:false}"
    there = found(4, 2, "global_batch_size=64", "optimizer.lr=0.1", entry, num_nodes=2)
    assert there.pop("three").skipped == "needs 3 machines of a SLURM allocation, and has 2"
    found_settings = {}
    for name, environment in there.items():
        config = environment.config
        assert config is not None
        sizes = (config.trainer.num_nodes, config.trainer.devices, environment.num_threads)
        found_settings[name] = (environment.num_workers, *sizes, config.global_batch_size, config.optimizer.lr)
    assert found_settings == {
        "cpu": (1, 1, 1, 4, 64, 0.1),
        "parallel-cpu": (8, 2, 4, 1, 64, 0.1),
        "gpu": (1, 1, 1, 4, 64, 0.1),
        "multi-gpu": (2, 1, 2, 2, 64, 0.1),
        "parallel-gpu": (4, 2, 2, 2, 256, 0.4),
    }
    # one core and one GPU on each machine are enough, if there are two machines
    of_one = found(1, 1, num_nodes=2)
    assert of_one["parallel-cpu"].num_workers == of_one["parallel-gpu"].num_workers == 2
    assert found(1, 0, num_nodes=2)["gpu"].skipped == "needs more GPUs than each of 2 machines has (0)"


def test_several_machines_need_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert found(2, 0, num_nodes=2)["parallel-cpu"].skipped.startswith("srun, which starts workers")
    assert found(2, 0, num_nodes=2)["cpu"].config is not None


def test_the_machines_are_those_of_the_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "num_cores", lambda: 16)
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 2)
    job = {"SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}
    assert available_machines(job) == Machines(4, 2, 3)
    assert available_machines({}) == Machines(16, 2, 1)


def test_each_environment_trains_its_own_configuration() -> None:
    there = found(16, 8, "global_batch_size=64", "optimizer.lr=0.1", "benchmark.budget_s=7")
    found_settings = {}
    for name, environment in there.items():
        assert environment.config is not None
        assert environment.config.trainer.max_time_s == 7
        rate = environment.config.optimizer.lr
        found_settings[name] = (
            environment.num_workers,
            environment.num_threads,
            environment.config.global_batch_size,
            rate,
            environment.is_data_parallel,
        )
    assert found_settings == {
        "cpu": (1, 16, 64, 0.1, False),
        "parallel-cpu": (16, 1, 64, 0.1, True),
        "gpu": (1, 16, 64, 0.1, False),
        "multi-gpu": (8, 2, 64, 0.1, True),
        "parallel-gpu": (8, 2, 512, 0.8, True),
    }


def test_every_error_is_in_one_message() -> None:
    messages = errors(
        "benchmark.budget_s=-1", "benchmark.environments.cpu.devices=0", "model.widht=4", "benchmark.budget=3"
    )
    assert "benchmark.budget_s=-1 must be float > 0" in messages
    assert "benchmark.environments.cpu.devices=0 must be all or int >= 1" in messages
    assert any(error.startswith("model.widht is not a setting: did you mean model.width?") for error in messages)
    assert any(error.startswith("benchmark.budget is not a setting: did you mean benchmark.") for error in messages)
    assert len(messages) == 4


def test_keys_of_the_environments_and_of_the_benchmark_are_refused_elsewhere() -> None:
    assert "is set by each environment" in errors("trainer.devices=2")[0]
    for key, value in (("resume", "x"), ("init_from", "x"), ("changed_data", "accept")):
        assert errors(f"{key}={value}") == [f"{key}={value} is not for a benchmark, which starts new runs: remove it"]
    assert errors("trainer.num_nodes=2") == [
        "trainer.num_nodes=2 is for the job of a benchmark: add cluster=slurm, or remove it"
    ]
    assert "is only for `lockstep benchmark`" in errors("benchmark.budget_s=3", is_benchmark=False)[0]
    assert "is only for `lockstep benchmark`" in errors("+benchmark=default", is_benchmark=False)[0]
    assert not errors("experiment=fashion_mnist", "model.width=16", "benchmark.budget_s=60")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rank 1 of 2 on n2 has been silent\nrank 0 of 2 waited for it: closed\n", "rank 1 of 2 on n2 has been silent"),
        ("rank 0 of 2 failed:\nTraceback (most recent call last):\n  ...\nValueError: 3\n", "ValueError: 3"),
    ],
)
def test_the_reason_of_a_failure_is_its_cause(tmp_path: Path, text: str, reason: str) -> None:
    folder = RunFolder(tmp_path)
    folder.failure.write_text(text)
    assert folder.failure_cause() == reason


@pytest.mark.parametrize(
    ("states", "received", "code"),
    [(["measured", "skipped"], 0, 0), (["failed", "measured"], 0, 1), (["failed"], signal.SIGINT, 130)],
)
def test_the_exit_code_reports_a_failure_or_a_signal(states: list[str], received: int, code: int) -> None:
    assert command.exit_code([{"state": state} for state in states], received) == code


def test_table_of_environments() -> None:
    records = [record("cpu", 1, 10), record("two", 2, 6), SKIPPED]
    missing = record("three", 3, 1, images_per_s=None, epoch_s=None, val_accuracy=None, epochs=0)
    assert results.rows([*records, missing]) == [
        ["cpu", "1", "64", "3", "10", "100", "1.00", "0.9000"],
        ["two", "2", "64", "3", "6", "167", "1.67", "0.9000"],
        ["three", "3", "64", "0", "-", "-", "-", "-"],
    ]
    assert results.summary(SKIPPED) == "gpu: skipped: needs more GPUs than this machine has (0)"


def test_record_of_a_run(tmp_path: Path) -> None:
    environment = found(2, 0)["cpu"]
    folder = RunFolder(tmp_path)
    folder.write_status(images_per_s=50.0, train_images=100)
    assert results.record(environment, folder, "measured", "")["epoch_s"]["median"] == 2  # of the steps so far
    folder.metrics.write_text("epoch,images_per_s,val/accuracy\n0,10,0.8\n1,20,0.9\n2,25,0.7\n")
    epochs = results.record(environment, folder, "stopped", "interrupted")
    assert (epochs["epochs"], epochs["val_accuracy"]) == (3, 0.9)
    assert epochs["epoch_s"] == {"median": 5, "low": 4, "high": 10, "count": 3}


def test_report_a4_page_and_chart(tmp_path: Path) -> None:
    report.write(tmp_path, whole(record("cpu", 1, 10), record("two", 2, 6), SKIPPED))
    assert {path.name for path in tmp_path.iterdir()} == {"report.pdf", "epoch_time.png"}
    (box,) = re.findall(rb"/MediaBox \[ ([\d. ]+) \]", (tmp_path / "report.pdf").read_bytes())
    assert [round(float(value) / 72 * 25.4) for value in box.split()] == [0, 0, 210, 297]
    pixels = imread(tmp_path / "epoch_time.png")
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 10


def test_report_without_times(tmp_path: Path) -> None:
    report.write(tmp_path, whole(record("cpu", 1, 1, state="failed", reason="x", images_per_s=None, epoch_s=None)))
    assert not list(tmp_path.iterdir())


def test_chart_labels_do_not_overlap() -> None:
    records = [record(f"environment-{i}", 2, 10.0 * 4**i) for i in range(6)]
    with style():
        fig = report.page(whole(*records), records)
        fig.draw_without_rendering()
        ax = fig.axes[1]
        labels = [*ax.texts, *ax.get_yticklabels(), ax.xaxis.label]
        boxes = [text.get_window_extent() for text in labels if text.get_text()]
        frame = fig.bbox
    assert [bar.get_width() for bar in ax.patches if isinstance(bar, Rectangle)] == [10.0 * 4**i for i in range(6)]
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 for box in boxes)


def start(cwd: Path, *texts: str) -> subprocess.Popen[bytes]:
    variables = {**environ(), "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    with open(cwd / "log", "wb") as log:
        return subprocess.Popen([TOOL, "benchmark", *texts], cwd=cwd, env=variables, stdout=log, stderr=log)


def folder_of(cwd: Path) -> Path:
    (path,) = cwd.glob("outputs/*/*_benchmark")
    return path


def numbers(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    benchmark = json.loads((path / "results.json").read_text())
    return benchmark, {record["name"]: record for record in benchmark["environments"]}


@pytest.mark.full
@pytest.mark.processes
def test_two_processes_are_measured(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        *SMALLER,
        "trainer.max_epochs=2000",
        "benchmark.budget_s=4",
        "benchmark.environments.cpu=null",
        "benchmark.environments.parallel-cpu.devices=2",
        "+benchmark.environments.gpus={strategy:ddp,devices:64,scale_with_workers:true}",
    )
    code = process.wait(PATIENCE_S)
    log = (tmp_path / "log").read_text()
    assert code == 0, log + "".join(p.read_text() for p in tmp_path.glob("outputs/*/*/*/terminal.log"))
    path = folder_of(tmp_path)
    benchmark, by_name = numbers(path)
    assert by_name["gpus"]["state"] == "skipped"
    assert "gpus: skipped" in log
    two = by_name["parallel-cpu"]
    assert two["state"] == "measured"
    assert two["workers"] == 2
    assert two["precision"] == "float64"
    rows = RunFolder(path / "parallel-cpu").read_metrics()
    assert two["epochs"] == len(rows) >= 1
    assert two["images_per_s"]["median"] == pytest.approx(np.median([float(row["images_per_s"]) for row in rows]))
    assert two["epoch_s"]["median"] == pytest.approx(np.median([70 / float(row["images_per_s"]) for row in rows]))
    assert two["val_accuracy"] == pytest.approx(max(float(row["val/accuracy"]) for row in rows))
    assert benchmark["environment"]["packages"]["torch"]
    assert (path / "report.pdf").exists()


@pytest.mark.full
@pytest.mark.processes
def test_a_failure_and_ctrl_c_lose_nothing_that_was_measured(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        *_own_network("tests.support.networks.FailsOnRank1"),
        "trainer.max_epochs=2000",
        "benchmark.budget_s=100",
        "+benchmark.environments.fails={strategy:cpu,devices:2,scale_with_workers:false}",
        "+benchmark.environments.works={strategy:cpu,devices:1,scale_with_workers:false}",
        "+benchmark.environments.later={strategy:cpu,devices:1,scale_with_workers:false}",
        *(
            f"benchmark.environments.{name}=null"
            for name in ("cpu", "parallel-cpu", "gpu", "multi-gpu", "parallel-gpu")
        ),
    )

    def trains() -> bool:
        assert process.poll() is None, (tmp_path / "log").read_text()
        places = list(tmp_path.glob("outputs/*/*_benchmark/works"))
        return bool(places) and len(RunFolder(places[0]).read_metrics()) >= 2

    wait_until(trains, "second epoch")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    log = (tmp_path / "log").read_text()
    path = folder_of(tmp_path)
    _, by_name = numbers(path)
    assert by_name["fails"]["state"] == "failed"
    reason = by_name["fails"]["reason"]
    assert re.match("ZeroDivisionError: the network of rank 1 is broken, in .*tests/support/networks.py:", reason)
    assert by_name["works"]["state"] == "stopped"
    assert by_name["works"]["images_per_s"]["count"] >= 2
    assert by_name["later"] == {
        "name": "later", "device": "cpu", "state": "skipped", "reason": "not started before the interruption"
    }  # fmt: skip
    assert (path / "report.pdf").exists()
    assert "fails: failed: ZeroDivisionError" in log
    assert (path / "epoch_time.png").exists()


def _own_network(target: str) -> Sequence[str]:
    kept = [text for text in SMALLER if not text.startswith("model.")]
    return [*kept, f"model._target_={target}", "+model.hidden=4"]

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
import torch
from matplotlib.image import imread

from lockstep.assembly import precision
from lockstep.benchmark import command, report, results
from lockstep.benchmark.environments import Environment, Machines, available_machines, environments
from lockstep.callbacks.plots import new_figure, style
from lockstep.config import overrides
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError
from lockstep.config.schema.configuration import BenchmarkConfig
from lockstep.runs.folder import RunFolder
from lockstep.system import hardware
from tests.support.commands import run as run_command
from tests.support.harness import PATIENCE_S, ROOT, SMALL, environ, wait_until

TOOL = os.fspath(Path(sys.executable).parent / "lockstep")
SMALLER = [text for text in SMALL if not text.startswith("strategy=")]


def record(name: str, workers: int, seconds: float, **changes: Any) -> dict[str, Any]:
    """The record of a run with three epochs of 1,000 images that took about so many `seconds`."""
    times = [0.9 * seconds, seconds, 1.05 * seconds]
    return {
        "name": name, "device": "cpu", "state": "measured", "reason": "", "nodes": 1, "workers": workers,
        "threads_per_worker": 1, "precision": "float32", "global_batch_size": 64, "epochs": 3, "max_epochs": 10,
        "elapsed_s": 60.0, "images_per_s": results.spread([1000 / time for time in times]),
        "epoch_s": results.spread(times), "is_extrapolated": False, "val_accuracy": 0.9, **changes,
    }  # fmt: skip


def whole(*records: dict[str, Any], name: str = "digits") -> dict[str, Any]:
    """results.json of these records."""
    return {
        "command": f"lockstep benchmark {name}",
        "date": "2026-11-21 12:00:00+00:00",
        "experiment": {"data": name, "model": "ResNet18", "name": None},
        "settings": {"budget_s": 60.0},
        "nodes": "n[1-2]",
        "environment": {
            **{"cpu": name, "cpu_cores": 2, "gpus": [name, name], "python": "3.12", "commit": "abc"},
            "packages": {"torch": "2.15", "lightning": "2.6", "lockstep": "1.0"},
        },
        "environments": list(records),
        "kept": {"environment": name, "checkpoint": "best.ckpt", "val_accuracy": 0.9, "command": "lockstep eval x"},
        "verdict": results.verdict(records),
    }


def page_text(benchmark: dict[str, Any]) -> str:
    """The text of the page, without line breaks inside of sentences."""
    with style():
        return " ".join(" ".join(text.get_text() for text in report.page(benchmark).texts).split())


SKIPPED = {"name": "gpu", "device": "gpu", "state": "skipped", "reason": "this machine has no GPUs"}


@pytest.mark.parametrize(("seconds", "words"), [(10, "more workers pay"), (15, "no difference"), (30, "cost time")])
def test_the_verdict_compares_with_one_worker_on_the_same_device(seconds: float, words: str) -> None:
    records = [record("cpu", 1, 1), record("gpu", 1, 15, device="gpu"), record("two", 2, seconds, device="gpu")]
    (found,) = results.verdict(records)
    assert found == f"two: 2 workers train {15 / seconds:.2f} times the images per second of one (gpu): " + (
        f"more workers {words}." if words.startswith("cost") else f"{words}."
    )
    assert results.speed_up(records[2], records) == pytest.approx(15 / seconds)
    (found,) = results.verdict([record("cpu", 1, 10), record("two", 2, 5, nodes=2, global_batch_size=128)])
    assert found.startswith(
        "two: 2 workers on 2 machines train 2.00 times the images per second of one (cpu), with 128"
    )


def test_there_is_no_verdict_from_few_epochs() -> None:
    (found,) = results.verdict([record("cpu", 1, 10, epochs=2), record("two", 2, 5)])
    assert found.endswith("(cpu): no verdict from fewer than 3 epochs, set a larger benchmark.budget_s.")


def test_nothing_is_compared_with_unsteady_epochs_or_without_a_single_worker() -> None:
    unsteady = results.spread([10.0, 100.0, 300.0])
    records = [record("cpu", 1, 10, images_per_s=unsteady), record("two", 2, 5)]
    (found,) = results.verdict(records)
    assert "not compared: half of the epochs of cpu are more than 15% off the median" in found
    assert results.speed_up(records[1], records) is None
    assert "no single worker on the same device was measured" in results.verdict([SKIPPED, record("two", 2, 5)])[0]
    assert results.verdict([record("cpu", 1, 1)]) == ["No environment with several workers was measured."]


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
    assert there["gpu"].skipped == "this machine has no GPUs"
    one = found(1, 1)
    assert one["parallel-cpu"].skipped == "needs at least two cores, this machine has 1 core"
    assert one["multi-gpu"].skipped == "needs at least two GPUs, this machine has 1 GPU"
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
    assert found(1, 0, num_nodes=2)["gpu"].skipped == "each of the 2 machines has no GPUs"


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


def test_bfloat16_is_skipped_on_a_cpu_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "bfloat16_unit", lambda device: None)
    there = found(2, 1, "trainer.precision=bfloat16")
    assert there["cpu"].skipped.startswith("this CPU has no bfloat16 arithmetic")
    assert [name for name, environment in there.items() if environment.config is not None] == ["gpu"]
    assert found(2, 0)["cpu"].config is not None


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


def test_the_report_is_an_a4_page_and_a_picture_with_every_fact(tmp_path: Path) -> None:
    benchmark = whole(record("cpu", 1, 10), record("two", 2, 6, is_extrapolated=True), SKIPPED)
    report.write(tmp_path, benchmark)
    assert {path.name for path in tmp_path.iterdir()} == {"report.pdf", "epoch_time.png"}
    (box,) = re.findall(rb"/MediaBox \[ ([\d. ]+) \]", (tmp_path / "report.pdf").read_bytes())
    assert [round(float(value) / 72 * 25.4) for value in box.split()] == [0, 0, 210, 297]
    pixels = imread(tmp_path / "epoch_time.png")
    assert pixels.shape[1] > 1000
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 10
    text = page_text(benchmark)
    for fact in (
        *(
            "Benchmark: ResNet18 on digits, float32",
            "two: 2 workers train 1.67 times",
            "gpu: skipped: this machine has no",
        ),
        *(
            "cpu 1 64 3 1:00 10.0 100 1.00x 0.9000",
            "two 2 64 3 1:00 6.00* 167 1.67x 0.9000",
            "* no whole epoch within the",
        ),
        *(
            "lockstep benchmark digits",
            "2026-11-21",
            "digits, 2 cores",
            "2 x digits",
            "n[1-2], CPU and GPUs of the first",
            "Python 3.12, torch 2.15",
        ),
        *("60 s of training in each environment", "validation accuracy 0.9000", "commit abc"),
    ):
        assert fact in text


def test_a_benchmark_without_a_time_has_no_chart(tmp_path: Path) -> None:
    failed = record("cpu", 1, 1, state="failed", reason="x", images_per_s=None, epoch_s=None, elapsed_s=None)
    unmeasured = whole(failed) | {"environment": {}}
    assert "None" not in page_text(unmeasured)
    report.write(tmp_path, unmeasured)
    assert [path.name for path in tmp_path.iterdir()] == ["report.pdf"]


@pytest.mark.parametrize(("value", "text"), [(0.0043, "0.00430"), (0.21, "0.210"), (123.4, "123"), (1234.5, "1,234")])
def test_seconds_have_three_digits(value: float, text: str) -> None:
    assert results.seconds(value) == text


def test_the_chart_has_points_on_a_log_axis_and_labels_that_do_not_overlap() -> None:
    records = [record(f"environment-{i}", 2, 10.0 * 4**i) for i in range(6)]
    with style():
        fig = new_figure(report.height(records))
        ax = fig.subplots()
        report.draw(ax, records, "A title that is long enough to need more than one line " * 2)
        fig.draw_without_rendering()
        labels = [*ax.texts, *ax.get_yticklabels(), ax.title, ax.xaxis.label]
        boxes = [text.get_window_extent() for text in labels if text.get_text()]
        frame = fig.bbox
    assert ax.get_xscale() == "log"
    assert not ax.patches, "a bar has no zero on a log axis"
    assert [10.0 * 4**i for i in range(6)] in [np.asarray(line.get_xdata()).tolist() for line in ax.lines]
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 for box in boxes)


def test_the_most_accurate_network_is_kept() -> None:
    records = [
        record("a", 1, 1, val_accuracy=0.8),
        record("b", 1, 1, val_accuracy=0.9),
        record("c", 1, 1, val_accuracy=0.9),
        record("d", 1, 1, val_accuracy=None),
    ]
    best = results.most_accurate(records)
    assert best is not None
    assert best["name"] == "b"
    assert results.most_accurate([SKIPPED]) is None


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
def test_two_processes_are_measured_and_their_network_is_kept(tmp_path: Path) -> None:
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
    best = torch.load(path / "best.ckpt", weights_only=True)
    assert best["image_format"]["class_names"]
    words = [*benchmark["kept"]["command"].replace("lockstep", TOOL, 1).split(), "--devices=1"]
    evaluated = run_command(words, tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    assert f"accuracy  {benchmark['kept']['test_accuracy']:.6f}" in evaluated.stdout


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
    assert (path / "best.ckpt").read_bytes() == RunFolder(path / "works").best_checkpoint.read_bytes()
    assert (path / "report.pdf").exists()
    assert "fails: failed: ZeroDivisionError" in log
    assert (path / "epoch_time.png").exists()


@pytest.mark.full
@pytest.mark.processes
def test_without_a_whole_epoch_the_last_checkpoint_is_validated_and_kept(tmp_path: Path) -> None:
    large = ("data.train_size=20000", "model.width=16", "global_batch_size=8")
    kept = [text for text in SMALLER if not text.startswith(("data.train_size", "model.width", "global_batch_size"))]
    process = start(tmp_path, *kept, *large, "benchmark.budget_s=1", "benchmark.environments.parallel-cpu=null")
    assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
    path = folder_of(tmp_path)
    benchmark, by_name = numbers(path)
    cpu = by_name["cpu"]
    assert cpu["epochs"] == 0
    assert cpu["is_extrapolated"]
    assert cpu["epoch_s"]["median"] == pytest.approx(cpu["train_images"] / cpu["images_per_s"]["median"])
    assert benchmark["kept"]["val_accuracy"] == cpu["val_accuracy"] is not None
    assert (path / "best.ckpt").read_bytes() == RunFolder(path / "cpu").last_checkpoint.read_bytes()


def _own_network(target: str) -> Sequence[str]:
    kept = [text for text in SMALLER if not text.startswith("model.")]
    return [*kept, f"model._target_={target}", "+model.hidden=4"]

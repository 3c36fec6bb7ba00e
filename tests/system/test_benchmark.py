"""`lockstep benchmark`: the arithmetic against numbers by hand, the report's files, and real runs in real processes."""

import dataclasses
import json
import math
import os
import re
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
from torch import Tensor, nn

from lockstep.benchmark import charts, command, paper, report, results, scaling
from lockstep.benchmark.environments import Environment, environments
from lockstep.benchmark.scaling import Result, Spread, Terms, spread
from lockstep.callbacks.plots import style
from lockstep.config import compose, overrides, validation
from lockstep.config.faults import ConfigError
from lockstep.config.schema import BenchmarkConfig
from lockstep.launch import parent
from lockstep.launch.worker import Job
from lockstep.runs.files import atomic_file
from lockstep.runs.folder import RunFolder
from lockstep.system import hardware
from lockstep.training.measure import flops_per_image, gradient_bytes
from tests.support.benchmarks import ONE, TWO, exactly, record, whole
from tests.support.commands import run as run_command
from tests.support.harness import PATIENCE_S, ROOT, SMALL, environ, wait_until

TOOL = os.fspath(Path(sys.executable).parent / "lockstep")
SMALLER = [text for text in SMALL if not text.startswith("strategy=")]


def test_a_spread_is_the_median_and_what_surrounds_it() -> None:
    found = spread([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found == Spread(median=3.0, low=1.0, high=100.0, deviation=1.0, count=5)
    assert found.error == pytest.approx(2 * 1.2533141 * 1.4826 / math.sqrt(5))


def test_latency_and_bandwidth_come_from_two_all_reduces() -> None:
    found = scaling.network(TWO)
    assert found is not None
    assert found.latency_s == pytest.approx(0.001)
    assert found.bytes_per_s == pytest.approx(1_000_000 / 0.008)


@pytest.mark.parametrize(("num_workers", "rounds"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (1024, 10)])
def test_a_message_reaches_all_in_as_many_rounds_as_it_takes_doublings(num_workers: int, rounds: int) -> None:
    assert scaling.tree_rounds(num_workers) == rounds


def test_the_latency_comes_from_the_rounds_of_the_library_that_was_measured() -> None:
    told = {}
    for backend in ("gloo", "nccl"):
        eight = dataclasses.replace(TWO, num_workers=8, backend=backend)
        between = scaling.network(eight)
        assert between is not None
        told[backend] = between.latency_s
        # the messages that were measured cost what was measured, whatever the library
        assert scaling.messages_s(eight) == pytest.approx((2 * 4 + 2) * 0.001 + 0.008)
    assert told["gloo"] == pytest.approx(0.002 / 14)  # a ring of eight
    assert told["nccl"] == pytest.approx(0.002 / 6)  # trees of three levels


def test_small_messages_cost_a_thousand_workers_ten_rounds() -> None:
    small = dataclasses.replace(TWO, gradient_bytes=0, gradient=TWO.message, communication=exactly(0.010))
    two, many = scaling.predict(small, 2), scaling.predict(small, 1024)
    assert two is not None
    assert many is not None
    assert many.communication_s == pytest.approx(10 * two.communication_s)


def test_a_prediction_is_the_tree_model_and_what_it_does_not_explain() -> None:
    # two workers: (2 * 4 + 2) * 1 ms + 8 ms = 18 ms by the model, of 60 ms measured; 42 ms stay
    here = scaling.predict(TWO, 2)
    assert here is not None
    assert here.communication_s == pytest.approx(0.018)
    assert here.step_s == pytest.approx(TWO.total_s)
    # eight: 10 * 3 * 1 ms + 2 * 7/8 * 8 ms = 44 ms; T = 90 + 10 + 42 + 44 = 186 ms against 100 ms alone
    far = scaling.predict(TWO, 8)
    assert far is not None
    assert far.communication_s == pytest.approx(0.044)
    assert far.efficiency == pytest.approx(100 / 186)
    alone = scaling.predict(TWO, 1)
    assert alone is not None
    assert alone.efficiency == 1


def test_one_worker_predicts_nothing() -> None:
    assert scaling.predict(ONE, 8) is None
    (words,) = scaling.verdict([Result("cpu", "cpu", 1, 100.0, ONE)])
    assert "communication is unknown" in words
    assert "nothing is predicted" in words


@pytest.mark.parametrize(("difference", "is_noise"), [(-0.003, True), (0.001, True), (0.01, False)])
def test_communication_is_never_negative_and_noise_is_called_noise(difference: float, is_noise: bool) -> None:
    noisy = spread([difference - 0.002, difference, difference + 0.002])
    found = Terms(2, exactly(0.1), exactly(0.01), exactly(0.1), noisy, exactly(0.001), exactly(0.002), 100, 1, 0)
    assert found.communication_s == max(0.0, difference)
    assert found.is_noise == is_noise
    assert sum(found.shares().values()) == pytest.approx(1)
    words = " ".join(scaling.verdict([Result("cpu", "cpu", 1, 100, ONE), Result("two", "cpu", 2, 100, found)]))
    assert ("within the noise" in words) == is_noise


@pytest.mark.parametrize(("mib", "count"), [(0.5, 1), (1, 1), (1.1, 2), (26, 2), (27, 3)])
def test_gradients_travel_in_a_small_bucket_and_then_large_ones(mib: float, count: int) -> None:
    assert scaling.num_buckets(int(mib * 2**20), 25) == count


@pytest.mark.parametrize(("rate", "words"), [(150, "more workers pay"), (100, "it makes no odds"), (50, "cost")])
def test_the_verdict_compares_with_one_worker_on_the_same_device(rate: float, words: str) -> None:
    alone = [Result("cpu", "cpu", 1, 1.0, ONE), Result("gpu", "gpu", 1, 100.0, ONE)]
    (found,) = scaling.verdict([*alone, Result("multi-gpu", "gpu", 2, float(rate), TWO)])
    assert f"{rate / 100:.2f} times the images per second of gpu" in found
    assert words in found
    assert "56% compute, 6.3% input, 38% communication" in found
    assert "mostly communication" in found
    assert "54% with 8" in found


SHAKY = spread([0.01, 0.1, 0.3])


def test_of_unsteady_steps_no_factor_is_said_but_why_and_what_would_help() -> None:
    shaky = Terms(1, SHAKY, exactly(0.01), exactly(0.1), None, None, None, 1, 1, 0)
    (found,) = scaling.verdict([Result("cpu", "cpu", 1, 1.0, shaky), Result("two", "cpu", 2, 48.8, TWO)])
    assert found.startswith("two (2 workers): in cpu steps took 10.0 ms to 300 ms, half of them more than 15% off")
    assert "nothing is said of whether more workers pay" in found
    assert "benchmark.budget_s" in found
    assert "48.8" not in found
    assert "54% with 8" in found, "the steps of the other one were steady"
    (found,) = scaling.verdict([Result("cpu", "cpu", 1, 1.0, ONE, SHAKY), Result("two", "cpu", 2, 48.8, TWO)])
    assert "in cpu epochs took 0.01 s to 0.3 s" in found
    assert "48.8" not in found


@pytest.mark.parametrize("part", ["step", "compute"])
def test_of_unsteady_steps_nothing_is_predicted_or_drawn(tmp_path: Path, part: str) -> None:
    shaky = dataclasses.replace(TWO, **{part: SHAKY})
    assert all(scaling.predict(shaky, n) is None for n in scaling.FAR)
    (words,) = scaling.verdict([Result("cpu", "cpu", 1, 1.0, ONE), Result("two", "cpu", 2, 48.8, shaky)])
    assert "What a step is made of is not said either" in words
    assert "efficiency" not in words
    assert "%" not in words.replace("15%", "")
    records = [record("cpu", ONE, 10), record("two", shaky, 10 / 48.8)]
    assert results.factor(records[1], records) is None
    assert "48.80" not in results.table(records, 200)
    assert "unsteady" in results.table(records, 200)
    assert any("steps took" in note or "unsteady" in note for note in results.notes(records))
    with style():
        assert charts.predicted(records) is None
    assert len(report.write(tmp_path, whole(*records))) == 4
    assert "48.8" not in report.html(whole(*records), [])


def test_times_on_a_log_axis_are_points_with_whiskers() -> None:
    with style():
        chart = charts.epoch_times([record("cpu", ONE, 10), record("two", TWO, 6)], "title")
        assert chart is not None
        (ax,) = chart.figure().axes
    assert not ax.patches, "a bar has no zero on a log axis"
    assert [np.asarray(line.get_xdata()).tolist() for line in ax.lines if line.get_marker() == "o"] == [[10.0, 6.0]]


def test_what_was_not_measured_is_not_zero() -> None:
    peaks = {"float32": dataclasses.asdict(spread([1e8, 2e8, 4e8])), "bfloat16": dataclasses.asdict(exactly(0.0))}
    other = {"tf32": dataclasses.asdict(exactly(1.25e14))}
    slow, fast = record("cpu", ONE, 10, peak_flops_per_s=peaks), record("gpu", ONE, 1, peak_flops_per_s=other)
    rows = {name: cells for name, *cells in report.details([slow, fast])[1]}
    assert rows["matrix product, float32 (GFLOP/s)"] == ["0.200 [0.100, 0.400]", "-"]
    assert rows["matrix product, bfloat16 (GFLOP/s)"] == ["-", "-"]
    assert rows["matrix product, tf32 (GFLOP/s)"] == ["-", "125,000 [125,000, 125,000]"]
    assert rows["all-reduce of one number (ms)"] == ["-", "-"]


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, padding=1, stride=2, bias=False)
        self.fc = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.conv2(torch.relu(self.norm(self.conv(x))))).mean((2, 3)))


def test_the_counted_operations_of_a_network_are_those_by_hand() -> None:
    net = _Net()
    first, second, last = 2 * 3 * 9 * 4 * 8 * 8, 2 * 4 * 9 * 6 * 4 * 4, 2 * 6 * 10
    # backward: gradients of weights and of inputs, but nobody wants that of the images
    assert flops_per_image(net, (3, 8, 8)) == 2 * first + 3 * second + 3 * last
    assert net.training
    assert all(p.grad is None for p in net.parameters())
    assert gradient_bytes(net) == 4 * (3 * 9 * 4 + 4 + 4 + 4 * 9 * 6 + 6 * 10 + 10)


def composed(*texts: str) -> BenchmarkConfig:
    config = validation.checked(compose.composed(overrides.benchmarked(texts)))
    assert isinstance(config, BenchmarkConfig)
    return config


def _writes_and_dies(job: Job, *_: object, **__: object) -> int:
    with atomic_file(RunFolder(Path(job.folder)).last_checkpoint):
        assert len(list(RunFolder(Path(job.folder)).checkpoints.iterdir())) == 1
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_what_a_killed_environment_was_writing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "cpu-1")
    folder.checkpoints.mkdir(parents=True)
    folder.write_status()
    config = composed()

    monkeypatch.setattr(parent, "_work", _writes_and_dies)
    environment = Environment("cpu-1", "cpu", 1, 1, None, "")
    benchmark = command.Benchmark(tmp_path, config, [environment], [])
    code = benchmark._do(Job("train", str(folder.path), {}), environment, "cpu-1", lambda used_s: 0.0)
    assert code == 128 + signal.SIGKILL
    assert list(folder.checkpoints.iterdir()) == []
    assert folder.status_file.exists()


def faults(*texts: str, is_benchmark: bool = True) -> list[str]:
    try:
        chosen = overrides.benchmarked(texts) if is_benchmark else texts
        overrides.check(chosen, is_multirun=False, is_benchmark=is_benchmark)
    except ConfigError as error:
        return error.faults
    return []


def found(num_cores: int, num_gpus: int, *texts: str) -> dict[str, Environment]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "num_visible_gpus", lambda: num_gpus)
        return {environment.name: environment for environment in environments(composed(*texts), num_cores, num_gpus)}


def test_environments_that_are_not_there_are_skipped_with_the_reason() -> None:
    there = found(2, 0)
    assert [name for name, environment in there.items() if environment.config is not None] == ["cpu", "parallel-cpu"]
    assert there["gpu"].skipped == "this machine has no GPUs"
    one = found(1, 1)
    assert one["parallel-cpu"].skipped == "needs at least two cores, this machine has 1 core"
    assert one["multi-gpu"].skipped == "needs at least two GPUs, this machine has 1 GPU"
    assert one["gpu"].config is not None


def test_each_environment_trains_its_own_configuration() -> None:
    there = found(16, 8, "global_batch_size=64", "optimizer.lr=0.1", "benchmark.budget_s=7")
    told = {}
    for name, environment in there.items():
        assert environment.config is not None
        assert environment.config.trainer.max_time_s == 7
        rate = environment.config.optimizer.lr
        told[name] = (
            environment.num_workers,
            environment.num_threads,
            environment.config.global_batch_size,
            rate,
            environment.is_data_parallel,
        )
    assert told == {
        "cpu": (1, 16, 64, 0.1, False),
        "parallel-cpu": (16, 1, 64, 0.1, True),
        "gpu": (1, 16, 64, 0.1, False),
        "multi-gpu": (8, 2, 64, 0.1, True),
        "parallel-gpu": (8, 2, 512, 0.8, True),
    }


def test_an_environment_is_added_and_taken_away_by_its_name() -> None:
    entry = "+benchmark.environments.three={strategy:cpu,devices:3,scale_with_workers:true}"
    there = found(2, 0, entry, "benchmark.environments.cpu=null")
    assert "cpu" not in there
    assert there["three"].num_workers == 3


def test_every_fault_is_told_in_one_message() -> None:
    told = faults(
        "benchmark.budget_s=-1", "benchmark.environments.cpu.devices=0", "model.widht=4", "benchmark.budget=3"
    )
    assert "benchmark.budget_s=-1 must be float > 0" in told
    assert "benchmark.environments.cpu.devices=0 must be all or int >= 1" in told
    assert any(fault.startswith("unknown key model.widht: did you mean model.width?") for fault in told)
    assert any(fault.startswith("unknown key benchmark.budget: did you mean benchmark.budget_s") for fault in told)
    assert len(told) == 4


def test_what_environments_say_is_not_typed_and_training_knows_no_benchmark() -> None:
    assert "every environment of a benchmark says it itself" in faults("trainer.devices=2")[0]
    for key in ("resume", "init_from"):
        assert faults(f"{key}=x") == [f"{key}=x: a benchmark starts anew: leave it out"]
    assert "only `lockstep benchmark` reads" in faults("benchmark.budget_s=3", is_benchmark=False)[0]
    assert "only `lockstep benchmark` reads" in faults("+benchmark=default", is_benchmark=False)[0]
    assert not faults("experiment=fashion_mnist", "model.width=16", "benchmark.budget_s=60")


def test_what_hydra_alone_refuses_is_a_fault_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.run(["benchmark.environments={mine:null}"], compose.DEFAULT)
    assert "Key 'mine' is not in struct, write +benchmark.environments={mine:null} to add it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("states", "received", "code"),
    [(["measured", "skipped"], 0, 0), (["failed", "measured"], 0, 1), (["failed"], signal.SIGINT, 130)],
)
def test_the_exit_code_tells_a_failure_and_a_signal(states: list[str], received: int, code: int) -> None:
    assert command.exit_code([{"state": state} for state in states], received) == code


HOSTILE = '<script>alert("x")</script> $\\nothing$ & \x1b[31m 花'


def test_a_chart_stands_on_a_page_as_it_stands_alone() -> None:
    records = [record("cpu", ONE, 10), record("two", TWO, 6)]
    with style():
        chart = charts.epoch_times(records, "title")
        assert chart is not None
        text = paper.paragraph("as high as its lines")
        (page,) = paper.pages([text, chart, *[text] * 20])
        alone = chart.figure()
        for each in (page, alone):
            each.draw_without_rendering()
    (ax,), (its_ax,) = (found.axes for found in (page, alone))
    here, there = ax.get_window_extent(), its_ax.get_window_extent()
    assert (here.width, here.height) == pytest.approx((there.width, there.height))
    lines = [found for part in page.subfigs for found in part.texts if found.get_text() == "as high as its lines"]
    tops = [float(found.get_window_extent().y1) / page.dpi for found in lines]
    assert np.diff(tops[1:]) == pytest.approx([-text.height] * 19)
    assert tops[0] - tops[1] == pytest.approx(text.height + chart.height)


def test_the_report_has_all_files_on_a4_pages_and_a_picture(tmp_path: Path) -> None:
    skipped = {"name": "gpu", "device": "gpu", "state": "skipped", "reason": "this machine has no GPUs"}
    files = report.write(tmp_path, whole(record("cpu", ONE, 10), record("two", TWO, 6), skipped))
    assert {path.name for path in files} == {path.name for path in tmp_path.iterdir()}
    pdf = (tmp_path / "report.pdf").read_bytes()
    boxes = re.findall(rb"/MediaBox \[ ([\d. ]+) \]", pdf)
    assert len(boxes) in (2, 3)
    for box in boxes:
        _, _, width, height = (float(value) / 72 * 25.4 for value in box.split())
        assert (round(width), round(height)) == (210, 297)
    pixels = imread(tmp_path / "epoch_time.png")
    assert pixels.shape[1] > 1000
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 10
    text = (tmp_path / "report.html").read_text()
    assert text.count("<svg") == 3
    assert "gpu: skipped: this machine has no GPUs" in text
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", text)
    assert "url(http" not in text


def test_hostile_names_do_nothing_anywhere(tmp_path: Path) -> None:
    records = [record(HOSTILE, ONE, 10, devices=[HOSTILE]), record("two", TWO, 6, state="failed", reason=HOSTILE)]
    report.write(tmp_path, whole(*records, name=HOSTILE))
    for text in (report.html(whole(*records, name=HOSTILE), []), (tmp_path / "epoch_time.svg").read_text()):
        assert "<script" not in text
        assert "\x1b" not in text
    assert "&lt;script&gt;" in report.html(whole(*records, name=HOSTILE), [])
    for width in (40, 1000):
        assert "\x1b" not in results.table(records, width)
    assert not any("\x1b" in note for note in results.notes(records))


@pytest.mark.parametrize(("value", "text"), [(0.0043, "0.0043"), (0.21, "0.21"), (1.5, "1.50"), (1234.5, "1,234")])
def test_seconds_have_three_digits(value: float, text: str) -> None:
    assert results.seconds(value) == text


def test_a_narrow_terminal_gets_the_table_below_each_other() -> None:
    records = [record("cpu", ONE, 10), record("two", TWO, 5)]
    wide, narrow = results.table(records, 200), results.table(records, 60)
    assert len(wide.splitlines()) == 3
    assert max(map(len, narrow.splitlines())) <= 60
    for text in (wide, narrow):
        assert "2.00x" in text
        assert "38%" in text


def test_labels_of_many_bars_do_not_overlap() -> None:
    records = [record(f"environment-{i}", TWO, 10.0 * 4**i, devices=["A long device name, 80 GB"]) for i in range(6)]
    with style():
        chart = charts.epoch_times(records, "A title that is long enough to need more than one line " * 2)
        assert chart is not None
        fig = chart.figure()
        fig.draw_without_rendering()
        (ax,) = fig.axes
        told = [*ax.texts, *ax.get_yticklabels(), ax.title, ax.xaxis.label]
        boxes = [text.get_window_extent() for text in told if text.get_text()]
        frame = fig.bbox
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 for box in boxes)


def test_long_text_goes_on_to_further_pages_in_order() -> None:
    with style():
        sheets = paper.pages([paper.paragraph(f"{i} " + "word " * 300) for i in range(12)])
    assert len(sheets) > 1
    for sheet in sheets:
        assert tuple(sheet.get_size_inches()) == paper.A4


def test_the_most_accurate_network_is_kept() -> None:
    records = [
        record("a", ONE, 1, val_accuracy=0.8),
        record("b", ONE, 1, val_accuracy=0.9),
        record("c", ONE, 1, val_accuracy=0.95, checkpoint=None),
        record("d", ONE, 1, val_accuracy=None),
    ]
    best = results.most_accurate(records)
    assert best is not None
    assert best["name"] == "b"
    assert results.most_accurate([{"name": "gpu", "state": "skipped"}]) is None


def start(cwd: Path, *texts: str) -> subprocess.Popen[bytes]:
    variables = {**environ(), "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    with open(cwd / "log", "wb") as log:
        return subprocess.Popen([TOOL, "benchmark", *texts], cwd=cwd, env=variables, stdout=log, stderr=log)


def folder_of(cwd: Path) -> Path:
    (path,) = cwd.glob("outputs/*/*_benchmark")
    return path


def numbers(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    told = json.loads((path / "results.json").read_text())
    return told, {record["name"]: record for record in told["environments"]}


@pytest.mark.processes
def test_two_processes_are_measured_and_their_network_is_kept(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        *SMALLER,
        "trainer.max_epochs=2000",
        "benchmark.budget_s=4",
        "benchmark.probe_s=2",
        "benchmark.probe_steps=10",
        "benchmark.environments.cpu=null",
        "benchmark.environments.parallel-cpu.devices=2",
        "+benchmark.environments.gpus={strategy:ddp,devices:64,scale_with_workers:true}",
    )
    code = process.wait(PATIENCE_S)
    log = (tmp_path / "log").read_text()
    assert code == 0, log + "".join(p.read_text() for p in tmp_path.glob("outputs/*/*/*/terminal.log"))
    path = folder_of(tmp_path)
    told, by_name = numbers(path)
    assert by_name["gpus"]["state"] == "skipped"
    assert "gpus: skipped" in log
    two = by_name["parallel-cpu"]
    assert two["state"] == "measured"
    assert two["workers"] == len(two["devices"]) == len(two["peak_memory_bytes"]) == 2
    assert two["precision"] == "float64"
    rows = RunFolder(path / "parallel-cpu").read_metrics()
    assert two["epochs"] == len(rows) >= 1
    assert two["images_per_s"]["median"] == pytest.approx(np.median([float(row["images_per_s"]) for row in rows]))
    assert two["epoch_s"]["median"] == pytest.approx(np.median([70 / float(row["images_per_s"]) for row in rows]))
    assert two["val_accuracy"] == pytest.approx(max(float(row["val/accuracy"]) for row in rows))
    assert two["terms"]["communication"]["count"] >= 3
    assert two["terms"]["num_all_gathers"] == 20
    assert two["terms"]["communication"]["median"] > 0
    assert not two["communication_is_noise"]
    expected = two["flops_per_image"] * two["images_per_s"]["median"] / two["peak_flops_per_s"]["float64"]["high"]
    assert two["mfu"] == pytest.approx(expected)
    assert {"bfloat16", "float32", "float64"} == set(two["peak_flops_per_s"])
    terms = results.terms_of(two)
    assert terms is not None
    is_steady = not terms.is_unsteady  # of a busy machine nothing is predicted
    assert [p["num_workers"] for p in two["predictions"]] == ([2, 8, 64, 1024] if is_steady else [])
    assert told["environment"]["packages"]["torch"]
    assert (path / "report.pdf").exists()
    best = torch.load(path / "best.ckpt", weights_only=True)
    assert best["image_format"]["class_names"]
    words = [*told["kept"]["command"].replace("lockstep", TOOL, 1).split(), "--devices=1"]
    evaluated = run_command(words, tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    assert f"accuracy  {told['kept']['test_accuracy']:.6f}" in evaluated.stdout


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
    assert by_name["fails"]["reason"] == "ZeroDivisionError: the network of rank 1 is broken"
    assert by_name["works"]["state"] == "stopped"
    assert by_name["works"]["images_per_s"]["count"] >= 2
    assert by_name["later"] == {
        "name": "later", "device": "cpu", "state": "skipped", "reason": "not reached before the end was asked for"
    }  # fmt: skip
    assert (path / "best.ckpt").resolve() == RunFolder(path / "works").best_checkpoint
    assert "ZeroDivisionError" in (path / "report.html").read_text()
    assert "fails: failed: ZeroDivisionError" in log
    assert (path / "epoch_time.png").exists()


def _own_network(target: str) -> Sequence[str]:
    kept = [text for text in SMALLER if not text.startswith("model.")]
    return [*kept, f"model._target_={target}", "+model.hidden=4"]

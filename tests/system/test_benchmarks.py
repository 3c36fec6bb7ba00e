"""The benchmarks measure what they say; here on next to nothing, for the numbers count only on a quiet machine."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from benchmarks import loops, step, sweep
from benchmarks.gpu.recipes import flops_per_image
from benchmarks.table import Row, alternate, markdown, ratios, row
from tests.support.compiler import needs_compiler
from tests.support.harness import ROOT, environ

SHORT = step.TINY._replace(num_steps=3, log_every_n_steps=1)


def test_rounds_go_forth_and_back() -> None:
    calls: list[str] = []

    def measured(name: str, value: float) -> float:
        calls.append(name)
        return value + len(calls)

    found = alternate(3, a=lambda: measured("a", 10), b=lambda: measured("b", 20))
    assert "".join(calls) == "abbaab"
    assert found == {"a": [11, 14, 15], "b": [22, 23, 26]}


def test_a_ratio_is_taken_inside_a_round() -> None:
    assert ratios([2.0, 20.0], [1.0, 10.0]) == [2.0, 2.0]


def test_a_row_has_median_spread_and_count() -> None:
    found = row("start", [3.0, 1.0, 2.0, 9.0], "{:.1f} s", aim="<= 2 s")
    assert found == Row("start", "2.5 s", "1.0 s to 9.0 s", 4, "<= 2 s")
    assert markdown("Start", [found]).splitlines()[-1] == "| start | 2.5 s | 1.0 s to 9.0 s | 4 | <= 2 s |"


@pytest.mark.filterwarnings("ignore")  # of a loop as templates write it
@pytest.mark.parametrize("loop", [loops.raw, loops.lockstep, loops.template])
def test_every_loop_trains_the_task(loop: Callable[[loops.Task], float]) -> None:
    assert 0 < loop(SHORT) < 10


@needs_compiler
@pytest.mark.filterwarnings("ignore")  # of the compiler's own imports
@pytest.mark.parametrize("loop", [loops.raw, loops.lockstep])
def test_a_compiled_loop_trains_the_task(loop: Callable[[loops.Task], float]) -> None:
    assert loop(SHORT._replace(is_compiled=True)) > 0


def test_both_averages_are_the_same() -> None:
    assert len(step.averaging(1)) == 2
    layer = torch.nn.Linear(2, 2)
    averages = [
        AveragedModel(layer, avg_fn=step.get_ema_avg_fn(0.9)),
        AveragedModel(layer, multi_avg_fn=step.get_ema_multi_avg_fn(0.9)),
    ]
    for _ in range(3):
        with torch.no_grad():
            layer.weight.add_(1)
        for average in averages:
            average.update_parameters(layer)
    torch.testing.assert_close(averages[0].module.weight, averages[1].module.weight)


def test_the_counted_operations_of_a_network_are_those_by_hand() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    net.append(nn.Linear(4 * 8 * 8, 10))
    convolution, product = 2 * 3 * 9 * 4 * 8 * 8, 2 * 4 * 8 * 8 * 10
    # backward: gradients of weights and of inputs, but not of the images
    assert flops_per_image(net, (3, 8, 8)) == 2 * convolution + 3 * product


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, so the benchmark would run")
@pytest.mark.processes
def test_the_benchmark_of_sweeps_sees_every_first_step() -> None:
    found = sweep.sweep()
    assert 0 < found.first_step_s < found.total_s
    assert len(found.later_steps_s) == sweep.NUM_TRIALS - sweep.NUM_AT_ONCE
    assert all(0 < s < found.total_s for s in found.later_steps_s)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_gpu_benchmark_says_so(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path), "--stages", "facts,smoke"]
    done = subprocess.run(words, cwd=ROOT, env=environ(), capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "\nsmoke: not started (no GPU here: nothing to measure)\n" in done.stdout
    assert "| Python | " in (tmp_path / "gpu.md").read_text(), "the facts are told all the same"

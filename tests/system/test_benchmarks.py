"""The benchmarks run, here on next to nothing: their numbers count only on a quiet machine."""

from collections.abc import Callable
from functools import partial

import pytest
import torch

from benchmarks import loops, scale, start, step
from benchmarks.table import Row, alternate, ratios, row


def test_row_median_spread_count() -> None:
    assert row("start", [3.0, 1.0, 2.0, 9.0], "{:.1f} s", aim="<= 2 s") == Row(
        "start", "2.5 s", "1.0 s to 9.0 s", 4, "<= 2 s"
    )
    assert row("start", [3.0], "{:.1f} s") == Row("start", "3.0 s", "", 1)
    assert ratios([2.0, 20.0], [1.0, 10.0]) == [2.0, 2.0]


def test_alternate_order_and_progress(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []

    def measured(name: str) -> int:
        calls.append(name)
        return len(calls)

    ways = {name: partial(measured, name) for name in ("raw", "ours")}
    assert alternate(2, **ways) == {"raw": [1, 4], "ours": [2, 3]}
    assert calls == ["raw", "ours", "ours", "raw"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines][::3] == [
        "round 1 of 2, raw",
        "round 2 of 2, raw",
    ]


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")  # of a loop as templates write it
@pytest.mark.parametrize("loop", [loops.raw, loops.lockstep, loops.template])
def test_loops_train(loop: Callable[[loops.Task], float]) -> None:
    assert loop(step.TINY._replace(num_steps=3, log_every_n_steps=1)) > 0


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the benchmark would measure")
def test_sweep_first_steps() -> None:
    found = start.sweep()
    assert 0 < found.first_step_s < found.total_s
    assert len(found.later_steps_s) == start.NUM_TRIALS - start.NUM_AT_ONCE


@pytest.mark.full
@pytest.mark.processes
def test_start_rows() -> None:
    assert [found.n for found in start.commands(1)] == [1] * 5


@pytest.mark.full
@pytest.mark.processes
def test_scale_rows() -> None:
    ways = {"list class folders": scale.DATA_WAYS["list class folders"]}
    found = scale.measure(scale.write_images, ways, (10, 20, 40), "image", 1, "<= 1.1")
    assert [row.what for row in found] == [
        "list class folders: 10, 20, 40 images",
        "list class folders: time per image, 40 : 20",
        "list class folders: memory, 40 : 20",
    ]

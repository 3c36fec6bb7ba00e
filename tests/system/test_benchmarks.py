"""The benchmarks run, here on next to nothing: their numbers count only on a quiet machine."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as sections
from benchmarks import loops, page, processes, step, sweep
from benchmarks.table import Row, ratios, row

pytestmark = [pytest.mark.full, pytest.mark.processes]


def test_a_row_has_median_spread_and_count_and_a_ratio_is_taken_inside_a_round() -> None:
    assert row("start", [3.0, 1.0, 2.0, 9.0], "{:.1f} s", aim="<= 2 s") == Row(
        "start", "2.5 s", "1.0 s to 9.0 s", 4, "<= 2 s"
    )
    assert ratios([2.0, 20.0], [1.0, 10.0]) == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore")  # of a loop as templates write it
@pytest.mark.parametrize("loop", [loops.raw, loops.lockstep, loops.template])
def test_every_loop_trains_the_task(loop: Callable[[loops.Task], float]) -> None:
    assert loop(step.TINY._replace(num_steps=3, log_every_n_steps=1)) > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the benchmark would measure")
def test_the_benchmark_of_sweeps_sees_every_first_step() -> None:
    found = sweep.sweep()
    assert 0 < found.first_step_s < found.total_s
    assert len(found.later_steps_s) == sweep.NUM_TRIALS - sweep.NUM_AT_ONCE


def test_the_benchmark_of_a_start_has_all_its_rows() -> None:
    assert [found.n for found in processes.start_up(1)] == [1] * 9


def test_a_section_has_the_rounds_that_were_asked_for_and_its_result_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def section(num_rounds: int = 7) -> list[Row]:
        return [row("a step", [1.0] * num_rounds, "{:.0f} s")]

    monkeypatch.setattr(sections, "SECTIONS", (("A step", section),))
    monkeypatch.setattr(page, "QUESTIONS", {"How fast?": ("a-step",)})
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "results.md")
    sections.main(["a-step", "--rounds", "2"])
    found = json.loads((tmp_path / "a-step.json").read_text())
    assert (found["command"], found["rows"][0]["n"]) == ("python -m benchmarks a-step --rounds 2", 2)
    assert "| a step | 1 s |" in (tmp_path / "results.md").read_text()

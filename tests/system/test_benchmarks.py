"""The benchmarks run, here on next to nothing: their numbers count only on a quiet machine."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import loops, page, start, step, table
from benchmarks.table import Row, ratios, row


def test_row_median_spread_count() -> None:
    assert row("start", [3.0, 1.0, 2.0, 9.0], "{:.1f} s", aim="<= 2 s") == Row(
        "start", "2.5 s", "1.0 s to 9.0 s", 4, "<= 2 s"
    )
    assert row("start", [3.0], "{:.1f} s") == Row("start", "3.0 s", "", 1)
    assert ratios([2.0, 20.0], [1.0, 10.0]) == [2.0, 2.0]


def test_section_of_a_page() -> None:
    rows = [
        {"what": "one", "median": "4.59 s", "spread": "", "n": 7, "aim": "<= 4 s"},
        {"what": "two (mean)", "median": "0.5", "spread": "0.4 to 0.6", "n": 2, "aim": ">= 0.3"},
    ]
    source = {"command": "python x", "device": "CPU", "software": "torch", "date": "2026-11-29", "rows": rows}
    assert page.section({"title": "How fast?", "sources": [source]}) == (
        "\n## How fast?\n\n"
        "| what | result | lowest to highest | n | 95 % interval | aim | source |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
        "| one | 4.59 s |  | 7 |  | <= 4 s, missed | (1) |\n"
        "| two (mean) | 0.5 | 0.4 to 0.6 | 2 | -0.771 to 1.771 | >= 0.3 | (1) |\n"
        "\n1. `python x`: CPU; torch; 2026-11-29\n"
    )


def test_publish_replaces_the_rows_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [{"command": f"python -m benchmarks.step {name}", "rows": []} for name in ("overhead", "resnet18")]
    (tmp_path / "step.json").write_text(json.dumps({"title": "How fast?", "sources": sources}))
    monkeypatch.setattr(page, "SECTIONS", ())
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(sys, "argv", ["benchmarks/step.py", "overhead"])
    table.measure(overhead=("step", lambda: [row("a step", [1.0, 2.0], "{:.0f} s")]))
    first, second = json.loads((tmp_path / "step.json").read_text())["sources"]
    assert (first["command"], first["rows"][0]["n"]) == ("python -m benchmarks.step overhead", 2)
    assert second == sources[1]
    assert (tmp_path / "results.md").read_text() == page.HEAD


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
def test_start_has_all_its_rows() -> None:
    assert [found.n for found in start.commands(1)] == [1] * 5

"""Some cases of the table of faults; `python -m benchmarks.faults` tries all of them."""

from pathlib import Path

import pytest

from benchmarks.faults.case import Case, Outcome, run
from benchmarks.faults.promises import broken

pytestmark = [pytest.mark.full, pytest.mark.processes]
STOPPED = Outcome(
    75, "stopped", "signal SIGTERM", 8, 0.5, is_continued=False, num_left=0, has_traceback=False
)


def test_broken_promises() -> None:
    case = Case("TERM", "parent", "step", 2)
    assert broken(case, STOPPED) == []
    assert broken(case, STOPPED._replace(exit_code=1, num_left=1)) == [
        "exit code 1, not 75",
        "processes left alive: 1",
    ]


@pytest.mark.parametrize(
    "case",  # a signal before there is a run: test_first_second.py
    [
        Case("HUP", "last rank", "validation", 2),
        Case("KILL", "last rank", "checkpoint", 3),
        Case("STOP", "parent", "step", 2),
        Case("STOP", "last rank", "first second", 2),
    ],
    ids=lambda case: "-".join(map(str, case)).replace(" ", "-"),
)
def test_signal(tmp_path: Path, case: Case) -> None:
    outcome = run(case, tmp_path)
    assert broken(case, outcome) == [], (tmp_path / "terminal.log").read_text()

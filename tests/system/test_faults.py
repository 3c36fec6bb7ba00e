"""The fault table: its verdicts, and some of its cases, which `python -m benchmarks.faults` tries all."""

from pathlib import Path

import pytest

from benchmarks.faults.__main__ import PAGE
from benchmarks.faults.case import MOMENTS, SIGNALS, TARGETS, Case, Outcome, all_cases, run
from benchmarks.faults.page import markdown
from benchmarks.faults.promises import broken

STOPPED = Outcome(75, "stopped", "signal SIGTERM", 8, 0.5, is_continued=False, num_left=0, has_traceback=False)
KILLED = STOPPED._replace(exit_code=1, state="failed", reason="rank 1 of 2 was ended by SIGKILL", step=6)


def test_every_signal_meets_everybody_at_every_moment() -> None:
    cases = list(all_cases())
    assert len(set(cases)) == len(cases) == len(SIGNALS) * len(MOMENTS) * (2 + 2 * len(TARGETS))


def test_a_stop_and_a_failure_as_promised_break_nothing() -> None:
    assert broken(Case("TERM", "parent", "step", 2), STOPPED) == []
    assert broken(Case("KILL", "last rank", "step", 2), KILLED) == []


@pytest.mark.parametrize(
    ("case", "outcome", "words"),
    [
        (Case("TERM", "parent", "step", 2), STOPPED._replace(exit_code=1), "exit code 1, not 75"),
        (Case("TERM", "parent", "step", 2), STOPPED._replace(state="training"), "state training, not stopped"),
        (Case("TERM", "parent", "step", 2), STOPPED._replace(num_left=1), "processes left alive: 1"),
        (Case("TERM", "parent", "step", 2), STOPPED._replace(has_traceback=True), "a traceback on the screen"),
        (Case("TERM", "parent", "checkpoint", 2), STOPPED, "newest checkpoint of step 8, not 12"),
        (Case("KILL", "last rank", "test", 2), KILLED, "newest checkpoint of step 6, not 18"),
        (Case("KILL", "rank 0", "step", 2), KILLED, "rank 0 is not named: rank 1 of 2 was ended by SIGKILL"),
        (
            Case("HUP", "parent", "test", 2),
            STOPPED._replace(step=18),
            "exit code 75, not 0; state stopped, not finished",
        ),
    ],
)
def test_each_broken_promise_is_said(case: Case, outcome: Outcome, words: str) -> None:
    assert "; ".join(broken(case, outcome)) == words
    assert f"{case.signal} to {case.target}" in markdown({case: outcome}, PAGE.read_text()).partition("## Promises")[2]


@pytest.mark.processes
@pytest.mark.parametrize(
    "case",
    [
        Case("INT", "parent", "first second", 2),
        Case("TERM", "rank 0", "first second", 1),
        Case("HUP", "last rank", "validation", 2),
        Case("HUP", "rank 0", "test", 1),
        Case("KILL", "last rank", "checkpoint", 3),
        Case("KILL", "rank 0", "step", 1),
        Case("STOP", "parent", "step", 2),
        Case("STOP", "last rank", "first second", 2),
    ],
    ids=lambda case: "-".join(map(str, case)).replace(" ", "-"),
)
def test_what_is_promised_holds(tmp_path: Path, case: Case) -> None:
    outcome = run(case, tmp_path)
    assert broken(case, outcome) == [], (tmp_path / "terminal.log").read_text()

"""What Lockstep promises in every case, and which of it an outcome breaks."""

import signal
from typing import NamedTuple

from benchmarks.faults.case import STEPS_PER_EPOCH, Case, Outcome
from lockstep.runs.folder import EXIT_FAILED, EXIT_STOPPED

STOPS = ("TERM", "INT", "USR1", "HUP")  # requests to stop with a checkpoint
NO_RUN = "no run"
# Of the newest checkpoint, at least: the moments are in the second epoch, the test is after the
# third.
NEWEST_STEP = {
    "first second": None,
    "step": STEPS_PER_EPOCH,
    "validation": STEPS_PER_EPOCH,
    "checkpoint": STEPS_PER_EPOCH,
    "test": 3 * STEPS_PER_EPOCH,
}


class End(NamedTuple):
    """How a case has to end."""

    exit_code: int
    state: str
    step: int | None  # of the newest checkpoint, at least


def promised(case: Case, *, has_run: bool) -> End:
    """Return the end of a case; without a run where the signal came before there was one."""
    number = signal.Signals[f"SIG{case.signal}"]
    kept = NEWEST_STEP[case.moment]
    if not has_run and case.signal == "KILL" and case.target == "parent":
        return End(-number, NO_RUN, None)
    if not has_run:
        return End(128 + number, NO_RUN, None)
    if case.signal in STOPS and case.moment == "test":
        return End(0, "finished", kept)  # all epochs are trained: nothing is left to stop
    if case.signal in STOPS:
        # after the step, or after the epoch's validation and checkpoint
        return End(
            EXIT_STOPPED,
            "stopped",
            2 * STEPS_PER_EPOCH if case.moment in ("validation", "checkpoint") else kept,
        )
    if case.signal == "STOP" and (case.target == "parent" or case.num_processes == 1):
        return End(0, "finished", 3 * STEPS_PER_EPOCH)  # no process waits for it
    if case.target == "parent":
        return End(-number, "no signal", kept)  # no process is left to report it
    return End(128 + number if case.num_processes == 1 else EXIT_FAILED, "failed", kept)


def broken(case: Case, outcome: Outcome) -> list[str]:
    """Each promise that an outcome breaks, in words; empty where all hold."""
    may_have_no_run = case.moment == "first second" and (
        case.target == "parent" or case.num_processes == 1
    )
    end = promised(case, has_run=not (may_have_no_run and outcome.state == NO_RUN))
    breaches = []
    if outcome.exit_code != end.exit_code:
        breaches.append(f"exit code {outcome.exit_code}, not {end.exit_code}")
    if outcome.state != end.state:
        breaches.append(f"state {outcome.state}, not {end.state}")
    if end.step is not None and (outcome.step or 0) < end.step:
        breaches.append(f"newest checkpoint of step {outcome.step}, not {end.step}")
    rank = 0 if case.target == "rank 0" else case.num_processes - 1
    if outcome.state == "failed" and f"rank {rank}" not in outcome.reason:
        breaches.append(f"rank {rank} is not named: {outcome.reason}")
    if outcome.has_traceback:
        breaches.append("a traceback on the screen")
    if outcome.num_left:
        breaches.append(f"processes left alive: {outcome.num_left}")
    return breaches

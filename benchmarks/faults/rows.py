"""Summarize how the cases ended: one row for each exit code of a signal and its target."""

from collections.abc import Mapping

from benchmarks.faults.case import Case, Outcome
from benchmarks.faults.promises import STOPS, broken
from benchmarks.table import Row

EXIT_CODES = {0: "0, finished", 75: "75, stopped, can be resumed", 1: "1, failed"}


def summarize(outcomes: Mapping[Case, Outcome]) -> list[Row]:
    """Return the rows. A case that breaks a promise has a row of its own."""
    groups: dict[tuple[str, str], list[tuple[Case, Outcome]]] = {}
    for case, outcome in outcomes.items():
        problems = broken(case, outcome)
        result = "; ".join(problems) if problems else _exit_code(outcome)
        groups.setdefault((_signal_and_target(case), result), []).append((case, outcome))
    return [_row(label, result, members) for (label, result), members in groups.items()]


def _row(label: str, result: str, members: list[tuple[Case, Outcome]]) -> Row:
    moments = ", ".join(dict.fromkeys(case.moment for case, _ in members))
    seconds = [outcome.seconds for _, outcome in members]
    spread = f"{min(seconds):.1f} s to {max(seconds):.1f} s"
    return Row(f"{label}: {moments}", result, spread, len(members))


def _signal_and_target(case: Case) -> str:
    signal = "SIGTERM, SIGINT, SIGUSR1, SIGHUP" if case.signal in STOPS else f"SIG{case.signal}"
    if case.target == "parent":
        return f"{signal} to the command"
    return f"{signal} to the only worker" if case.num_processes == 1 else f"{signal} to a worker"


def _exit_code(outcome: Outcome) -> str:
    if outcome.is_continued:
        return f"{EXIT_CODES[outcome.exit_code]} after SIGCONT"
    if outcome.exit_code > 128:
        return "128 + number of the signal"
    return EXIT_CODES.get(outcome.exit_code, f"{outcome.exit_code}, killed with all workers")


def describe(case: Case) -> str:
    """Describe a case."""
    plural = "es" if case.num_processes > 1 else ""
    return f"{case.signal} to {case.target}, {case.moment}, {case.num_processes} process{plural}"

"""The fault table as a page: how each case ended, and where that is not what is promised."""

from collections.abc import Mapping
from datetime import date

from benchmarks.faults.case import MOMENTS, TIMEOUT_S, Case, Outcome, all_cases
from benchmarks.faults.promises import broken
from benchmarks.page import table
from benchmarks.table import device, software

HEAD = f"""\
# Reliability: the outcome of every signal and crash

`python -m benchmarks.faults --out runs`: {{conditions}}.

Every case is a real training on CPU processes. One process gets a signal at a chosen moment, and \
all processes are
observed until the last one has exited. n=1 for each case. Seconds count from the signal to the \
end of the last process,
on a machine that runs another case as well.

- **To:** the parent is the command itself; it starts and supervises the ranks.
- **Moment:** the first second (parent: half a second after its start, before there is a run \
folder; ranks: as soon as
  they exist), after a step, in the validation, in a checkpoint whose file is open and empty, and \
in the test.
- **Step:** the optimizer step of the newest checkpoint, from which `resume=` continues exactly. \
Three epochs of 6 steps
  are trained; the step, validation and checkpoint are those of the second epoch.

| cell begins with | meaning |
| --- | --- |
| 0 | finished; all epochs are trained and tested |
| 75 | stopped: all ranks after the same step, with a checkpoint |
| 1 | failed; `failure.txt`, the status and the last printed lines name the rank and the cause |
| 128 + n | terminated by signal n: with one line before there was a run; or as a failure, if the \
only rank was killed |
| -n | the command was killed by signal n, and its ranks with it; `lockstep status` reports it |
| cont. | frozen, and no process notices; continues after SIGCONT, exit code and seconds from \
there |

A frozen rank is detected when a collective has waited for `strategy.timeout_s`, here \
{TIMEOUT_S:g} s.
"""


def markdown(outcomes: Mapping[Case, Outcome], before: str) -> str:
    """Return the page of all cases so far.

    Its section "Around a run" comes from the page `before`.
    """
    around = before[before.index("## Around a run") : before.index("## 1 process")]
    conditions = f"{device()}; {software()}; {date.today().isoformat()}"
    parts = [HEAD.format(conditions=conditions), around.rstrip() + "\n"]
    for num_processes in sorted({case.num_processes for case in outcomes}):
        cases = [case for case in outcomes if case.num_processes == num_processes]
        lines = []
        for name, target in dict.fromkeys((case.signal, case.target) for case in cases):
            cells = [_cell(case, outcomes.get(case)) for case in _row(name, target, num_processes)]
            lines.append([name, target, *cells])
        columns, plural = ["signal", "to", *MOMENTS], "es" if num_processes > 1 else ""
        parts.append(f"## {num_processes} process{plural}\n\n{table(columns, lines)}")
    parts.append(_verdict(outcomes))
    return "\n".join(parts)


def _row(name: str, target: str, num_processes: int) -> list[Case]:
    return [Case(name, target, moment, num_processes) for moment in MOMENTS]


def _cell(case: Case, outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    code = f"cont. {outcome.exit_code}" if outcome.is_continued else f"{outcome.exit_code}"
    kept = "nothing" if outcome.step is None else f"step {outcome.step}"
    mark = " **!**" if broken(case, outcome) else ""
    return f"{code}, {kept}, {outcome.seconds:.1f} s{mark}"


def _verdict(outcomes: Mapping[Case, Outcome]) -> str:
    wrong = {case: words for case, outcome in outcomes.items() if (words := broken(case, outcome))}
    lines = [
        f"## Promises\n\n{len(outcomes) - len(wrong)} of {len(outcomes)} cases ended as promised.\n"
    ]
    num_untried = len(set(all_cases()) - outcomes.keys())
    if num_untried:
        lines.append(f"{num_untried} cases have not been tried; their cells are empty.\n")
    for case, words in wrong.items():
        lines.append(f"- {describe(case)}: {'; '.join(words)}")
    return "\n".join(lines) + ("\n" if wrong else "")


def describe(case: Case) -> str:
    """Describe a case."""
    plural = "es" if case.num_processes > 1 else ""
    return f"{case.signal} to {case.target}, {case.moment}, {case.num_processes} process{plural}"

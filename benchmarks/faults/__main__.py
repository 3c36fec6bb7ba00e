"""Send every signal at every moment to trainings: 240 trainings, half an hour on two cores."""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.faults.case import Case, Outcome, all_cases, run
from benchmarks.faults.promises import broken
from benchmarks.faults.rows import describe, summarize
from benchmarks.table import publish
from lockstep.runs.files import read_json, write_json

AT_ONCE = 2


def main() -> int:
    """Print every case as it ends, then publish all. Return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder of the runs; an interrupted call resumes there",
    )
    folder: Path = parser.parse_args().out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"
    outcomes = _read(results)
    cases = list(all_cases())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [case for case in cases if case not in outcomes]
        for case, outcome in zip(
            waiting, pool.map(lambda case: _produce(case, folder), waiting), strict=True
        ):
            outcomes[case] = outcome
            write_json(results, {"cases": [[case, outcome] for case, outcome in outcomes.items()]})
            problems = "; ".join(broken(case, outcome))
            print(f"{describe(case)}: {outcome.exit_code} {problems}".rstrip(), flush=True)
    publish("signals", summarize({case: outcomes[case] for case in cases}), "--out runs")
    return int(any(broken(case, outcomes[case]) for case in cases))


def _produce(case: Case, folder: Path) -> Outcome:
    place = folder / "-".join(map(str, case)).replace(" ", "_")
    number = 0
    # a call before was cut there
    while (folder_of_try := place.with_name(f"{place.name}.{number}")).exists():
        number += 1
    folder_of_try.mkdir()
    return run(case, folder_of_try)


def _read(path: Path) -> dict[Case, Outcome]:
    return {Case(*case): Outcome(*outcome) for case, outcome in read_json(path).get("cases", [])}


if __name__ == "__main__":
    sys.exit(main())

"""`lockstep compare` for settings of sweeps.

The trials of a setting differ only in seed and fold.
"""

import functools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lockstep.monitoring import comparison
from lockstep.runs.files import print_json
from lockstep.runs.folder import SWEEP, RunFolder
from lockstep.system.terminal import measure, print_line, terminal
from lockstep.system.text import plural
from lockstep.trials.differences import (
    Difference,
    bounded,
    describe_difference,
    holm,
    paired_test,
    unpaired_test,
)
from lockstep.trials.ledger import Ledger
from lockstep.trials.out_of_fold import names as names_of
from lockstep.trials.table import FOLD, REPEATS, num_tested_groups, present_table, text


class Side(NamedTuple):
    """A setting, its results by metric and repetition, and a trial of each repetition.

    A repetition is a seed, or a fold with its seeds.
    """

    name: str
    over: str
    num_trials: int
    trials: dict[str, RunFolder]
    results: dict[str, dict[str, float]]
    # This maps metrics with a better direction to whether a higher value is better.
    is_max: dict[str, bool]
    # number of groups of images over all folds, or 0 without groups and for seeds
    num_groups: int

    def __str__(self) -> str:
        finished = f"finished {self.over}: {', '.join(self.trials) or 'none'}"
        groups = f", {plural(self.num_groups, 'group')}" if self.num_groups else ""
        return f"{self.name}: {plural(self.num_trials, 'trial')}, {finished}{groups}"


def compare_sweeps(names: Sequence[str], *, is_json: bool) -> int:
    """Print how settings differ from the first one, which is the best of its sweep.

    Returns the exit code. Raises ValueError.
    """
    known = [side for name in names for side in _sides(name)]
    sides = [side for side in known if len(side.trials) > 1]
    # These are all pairs, because the same numbers chose the first setting.
    num_tests = math.comb(len(sides), 2)
    found: list[tuple[str, int, Difference]] = []
    for metric in sides[0].results if sides else ():
        differences = [_difference(metric, sides[0], side) for side in sides[1:]]
        others = {at: each for at, each in enumerate(differences, 1) if each}
        found += [
            (metric, at, each)
            for at, each in zip(others, holm([*others.values()], num_tests), strict=True)
        ]
    if len({at for _, at, _ in found}) < max(1, len(sides) - 1):
        what = (
            "compare needs settings with a common metric, "
            "each of two or more finished seeds or folds"
        )
        found_in = (f"{side}, metrics: {', '.join(side.results) or 'none'}" for side in known)
        raise ValueError(f"{what}: {'; '.join(found_in)}.")
    settings = comparison.differences([next(iter(side.trials.values())) for side in sides])
    settings = [(key, values) for key, values in settings if key not in REPEATS]
    if is_json:
        keys = "name", "num_trials", "num_groups", "results"
        listed = [{key: getattr(side, key) for key in keys} for side in known]
        between = [
            {"metric": metric, "second": sides[at].name, **each._asdict()}
            for metric, at, each in found
        ]
        print_json(
            {
                "settings": dict(settings),
                "num_tests": num_tests,
                "sides": listed,
                "differences": between,
            }
        )
        return 0
    out = terminal()
    marks = map(comparison.letter, range(len(sides)))
    for side in known:
        print_line(out, f"{next(marks) if len(side.trials) > 1 else '-'}  {side}")
    if len(names) > 1:
        comparison.show_settings(settings)
    out.print()
    for metric, at, each in found:
        results = _comparable_results(metric, sides[0], sides[at])
        means = " and ".join(measure(statistics.fmean(each.values())) for each in results)
        sentence = describe_difference(
            each, comparison.letter(at), sides[0].over, is_max=sides[0].is_max.get(metric)
        )
        print_line(out, f"{metric} {means}: {sentence}")
    if num_tests > 1:
        print_line(out, f"p is adjusted for all {num_tests} pairs (Holm), the intervals are not.")
    return 0


def _sides(argument: str) -> list[Side]:
    """Return the settings that fit SWEEP or SWEEP:SETTING=VALUE,..., the best first.

    Values may be formatted as in the table. Raises ValueError if there is none.
    """
    path, _, typed = argument.partition(":")
    if not (Path(path) / SWEEP).is_file():
        raise ValueError(
            f"{path} is not a sweep: compare settings of sweeps with each other, "
            "and runs with runs."
        )
    wanted = {tuple(part.split("=", 1)) for part in re.split(r",(?=[\w./@+~-]+=)", typed) if part}
    sweep_table = present_table(Ledger.open(Path(path).resolve(), None, ()))
    over = FOLD if FOLD in sweep_table.keys else "seed"
    objective = sweep_table.objective
    of_test = objective.name.replace("val/", "test/")
    is_max = {objective.name: objective.is_max, of_test: objective.is_max, "test/loss": False}
    sides, known = [], []
    for settings, rows in sweep_table.repeated:
        known.append(
            (
                f"{path}:{','.join(f'{key}={text(value)}' for key, value in settings.items())}"
            ).removesuffix(":")
        )
        given = {(key, value) for key, value in rows[0].settings.items() if key not in REPEATS}
        if not wanted <= given | {(key, text(value)) for key, value in given}:
            continue
        trials, measured = {}, defaultdict(lambda: defaultdict(list))
        done = [row for row in rows if row.state == "finished"]
        for row in done:
            trials[row.settings.get(over, "")] = row.trial.folder
            for metric, value in {objective.name: row.value, **row.tests}.items():
                if value is not None:
                    measured[metric][row.settings.get(over, "")].append(value)
        results = {
            name: {key: statistics.fmean(same) for key, same in of.items()}
            for name, of in measured.items()
        }
        num_groups = num_tested_groups(done) if over == FOLD else 0
        sides.append(Side(known[-1], REPEATS[over], len(rows), trials, results, is_max, num_groups))
    if not sides:
        raise ValueError(
            f"{argument} names no setting of the sweep: choose one of {'; '.join(known)}."
        )
    return sides


def _comparable_results(
    metric: str, first: Side, second: Side
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the results of two or more common seeds or folds, or all results."""
    ours, theirs = first.results[metric], second.results.get(metric, {})
    common = [key for key in ours if key in theirs]
    if len(common) < 2:
        return ours, theirs
    return {key: ours[key] for key in common}, {key: theirs[key] for key in common}


def _difference(metric: str, first: Side, second: Side) -> Difference | None:
    """Pair the results of equal seeds or folds, or compare means.

    Raises ValueError for folds of different images.
    """
    ours, theirs = _comparable_results(metric, first, second)
    are_paired, are_folds = [*ours] == [*theirs], first.over == REPEATS[FOLD]
    if (
        first.over != second.over
        or min(len(ours), len(theirs)) < 2
        or (are_folds and not are_paired)
    ):
        return None
    for fold in ours if are_folds else ():
        if _images(first.trials[fold]) != _images(second.trials[fold]):
            what = f"fold {fold} of {first.name} and of {second.name} has different images"
            raise ValueError(
                f"{what}: compare folds of the same data, data.folds and data.split_seed."
            )
    if are_paired:
        found = paired_test([theirs[key] - ours[key] for key in ours], are_folds=are_folds)
    else:
        found = unpaired_test([*ours.values()], [*theirs.values()])
    return bounded(found, metric, [*ours.values(), *theirs.values()])


@functools.cache
def _images(run: RunFolder) -> int:
    """Return a hash of the names of the images that a run was tested on."""
    return hash(tuple(names_of(run, "test")))

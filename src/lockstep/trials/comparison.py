"""`lockstep compare` for settings of sweeps.

The trials of a setting differ only in seed and fold.
"""

import functools
import math
import re
import statistics
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
        repetitions = f"finished {self.over}: {', '.join(self.trials) or 'none'}"
        groups = f", {plural(self.num_groups, 'group')}" if self.num_groups else ""
        return f"{self.name}: {plural(self.num_trials, 'trial')}, {repetitions}{groups}"


def compare_sweeps(arguments: Sequence[str], *, is_json: bool) -> int:
    """Print how settings differ from the first one, which is the best of its sweep.

    Returns the exit code. Raises ValueError.
    """
    all_sides = [side for argument in arguments for side in _sides(argument)]
    sides = [side for side in all_sides if len(side.trials) > 1]
    # All pairs count, because the same results selected the first setting.
    num_tests = math.comb(len(sides), 2)
    rows: list[tuple[str, int, Difference]] = []
    for metric in sides[0].results if sides else ():
        differences = {}
        for position, side in enumerate(sides[1:], 1):
            if difference := _difference(metric, sides[0], side):
                differences[position] = difference
        adjusted = holm(list(differences.values()), num_tests)
        rows += [(metric, *pair) for pair in zip(differences, adjusted, strict=True)]
    if len({position for _, position, _ in rows}) < max(1, len(sides) - 1):
        requirement = (
            "compare needs settings with a common metric, "
            "each of two or more finished seeds or folds"
        )
        descriptions = [
            f"{side}, metrics: {', '.join(side.results) or 'none'}" for side in all_sides
        ]
        raise ValueError(f"{requirement}: {'; '.join(descriptions)}.")
    settings = comparison.differences([next(iter(side.trials.values())) for side in sides])
    settings = [(key, values) for key, values in settings if key not in REPEATS]
    if is_json:
        keys = "name", "num_trials", "num_groups", "results"
        facts = {
            "settings": dict(settings),
            "num_tests": num_tests,
            "sides": [{key: getattr(side, key) for key in keys} for side in all_sides],
            "differences": [
                {"metric": metric, "second": sides[position].name, **difference._asdict()}
                for metric, position, difference in rows
            ],
        }
        print_json(facts)
        return 0
    out = terminal()
    marks = map(comparison.letter, range(len(sides)))
    for side in all_sides:
        print_line(out, f"{next(marks) if side in sides else '-'}  {side}")
    if len(arguments) > 1:
        comparison.show_settings(settings)
    out.print()
    for metric, position, difference in rows:
        results = _comparable_results(metric, sides[0], sides[position])
        means = " and ".join(measure(statistics.fmean(values.values())) for values in results)
        is_max, second = sides[0].is_max.get(metric), comparison.letter(position)
        sentence = describe_difference(difference, second, sides[0].over, is_max=is_max)
        print_line(out, f"{metric} {means}: {sentence}")
    if num_tests > 1:
        print_line(out, f"p is adjusted for all {num_tests} pairs (Holm), the intervals are not.")
    return 0


def _sides(argument: str) -> list[Side]:
    """Return the settings that fit SWEEP or SWEEP:SETTING=VALUE,..., the best first.

    Values may be formatted as in the table. Raises ValueError if there is none.
    """
    path, _, conditions_text = argument.partition(":")
    if not (Path(path) / SWEEP).is_file():
        raise ValueError(
            f"{path} is not a sweep: compare settings of sweeps with each other, "
            "and runs with runs."
        )
    conditions = {
        tuple(condition.split("=", 1))
        for condition in re.split(r",(?=[\w./@+~-]+=)", conditions_text)
        if condition
    }
    sweep_table = present_table(Ledger.open(Path(path).resolve()))
    over = sweep_table.over
    objective = sweep_table.objective
    of_test = objective.name.replace("val/", "test/")
    is_max = {objective.name: objective.is_max, of_test: objective.is_max, "test/loss": False}
    sides, side_names = [], []
    for settings, all_rows in sweep_table.rows_by_setting:
        setting_texts = [f"{key}={text(value)}" for key, value in settings.items()]
        side_names.append(f"{path}:{','.join(setting_texts)}".removesuffix(":"))
        rows = [row for row in all_rows if row.state == "finished"]
        typed = {(key, value) for key, value in all_rows[0].settings.items() if key not in REPEATS}
        if not conditions <= typed | {(key, text(value)) for key, value in typed}:
            continue
        results = {}
        for metric, column in sweep_table.measurements(rows).items():
            if values := sweep_table.repetitions(rows, column):
                results[metric] = values
        sides.append(
            Side(
                side_names[-1],
                REPEATS[over],
                len(all_rows),
                {row.settings.get(over, ""): row.trial.folder for row in rows},
                results,
                is_max,
                num_tested_groups(rows) if over == FOLD else 0,
            )
        )
    if not sides:
        raise ValueError(
            f"{argument} names no setting of the sweep: choose one of {'; '.join(side_names)}."
        )
    return sides


def _comparable_results(
    metric: str, first: Side, second: Side
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the results of two or more common seeds or folds, or all results."""
    first_results, second_results = first.results[metric], second.results.get(metric, {})
    common_keys = [key for key in first_results if key in second_results]
    if len(common_keys) < 2:
        return first_results, second_results
    first_common = {key: first_results[key] for key in common_keys}
    return first_common, {key: second_results[key] for key in common_keys}


def _difference(metric: str, first: Side, second: Side) -> Difference | None:
    """Pair the results of equal seeds or folds, or compare means.

    Raises ValueError for folds of different images.
    """
    first_results, second_results = _comparable_results(metric, first, second)
    are_paired, are_folds = [*first_results] == [*second_results], first.over == REPEATS[FOLD]
    if (
        first.over != second.over
        or min(len(first_results), len(second_results)) < 2
        or (are_folds and not are_paired)
    ):
        return None
    for fold in first_results if are_folds else ():
        if _images(first.trials[fold]) != _images(second.trials[fold]):
            raise ValueError(
                f"fold {fold} of {first.name} and of {second.name} has different "
                "images: compare folds of the same data, data.folds and data.split_seed."
            )
    first_values, second_values = [*first_results.values()], [*second_results.values()]
    if are_paired:
        pairs = zip(first_values, second_values, strict=True)
        difference = paired_test([second - first for first, second in pairs], are_folds=are_folds)
    else:
        difference = unpaired_test(first_values, second_values)
    return bounded(difference, metric, first_values + second_values)


@functools.cache
def _images(run: RunFolder) -> int:
    """Return a hash of the names of the images that a run was tested on."""
    return hash(tuple(names_of(run, "test")))

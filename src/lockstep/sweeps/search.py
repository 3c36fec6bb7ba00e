"""A search: Optuna proposes points, receives their results, and prunes poor ones.

A point is a trial. hydra-optuna-sweeper 1.3.0 needs Optuna 2, starts trials in batches that wait
for their slowest trial, and cannot prune.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from lockstep.config import build
from lockstep.config.composing.sweep_space import Interval, Space
from lockstep.config.errors import ConfigError, config_error
from lockstep.config.schema.target_sections import Search
from lockstep.runs.discovery import read_rows
from lockstep.runs.files import open_to_append
from lockstep.runs.folder import JOURNAL
from lockstep.runs.naming import display_path
from lockstep.sweeps.course import Grid
from lockstep.system.internals import resumed_trial
from lockstep.system.text import plural
from lockstep.trials.ledger import DONE, Ledger, Trial
from lockstep.trials.results import Objective

NUMBER = "trial"  # This attribute of an Optuna trial is its number in the ledger.
MAX_REPEATS = 20  # This many draws of known points in a row end the search.
Point = frozenset[tuple[str, Any]]


def distributions(space: Space) -> dict[str, BaseDistribution]:
    return {key: _distribution(domain) for key, domain in space.items()}


def _distribution(domain: Interval | tuple[str, ...]) -> BaseDistribution:
    if not isinstance(domain, Interval):
        return CategoricalDistribution(domain)
    if all(isinstance(end, int) for end in (domain.low, domain.high, domain.step or 1)):
        return IntDistribution(
            int(domain.low), int(domain.high), log=domain.is_log, step=int(domain.step or 1)
        )
    return FloatDistribution(domain.low, domain.high, log=domain.is_log, step=domain.step)


def study_in(
    ledger: Ledger, space: Mapping[str, BaseDistribution], search: Search, objective: Objective
) -> optuna.Study:
    """Open or create the study of a sweep, whose lock is held. Raises ConfigError.

    Points of the ledger that a damaged or lost journal lacks are drawn first. Points that failed
    are drawn again.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    file = ledger.path / JOURNAL
    file.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)  # A killed process may have left it.
    direction = StudyDirection.MAXIMIZE if objective.is_max else StudyDirection.MINIMIZE
    try:
        # The last line may be incomplete after a full disk or a power failure.
        with open_to_append(file) as journal:
            journal.seek(0)
            journal.truncate(journal.read().rfind(b"\n") + 1)
        # By default Optuna uses a link as a lock, and a run folder must not contain links.
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(file), JournalFileOpenLock(str(file)))),
            study_name="study",
            direction=direction,
            load_if_exists=True,
        )
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise config_error(
            "damaged",
            display_path(file),
            "cannot be read",
            "remove it, and repeat the command, which makes it again from the trials",
        ) from error
    if study.directions != [direction]:
        raise config_error(
            "changed",
            display_path(ledger.path),
            "has another objective",
            "choose another sweep.name",
        )
    points = trials_by_point(ledger, space)
    if len(points) < len(ledger.trials):
        raise config_error(
            "changed",
            display_path(ledger.path),
            "has several seeds of a point, of an earlier version",
            "choose another sweep.name",
        )
    last_states = {}
    for trial in study.get_trials(deepcopy=False):
        number = trial.user_attrs.get(NUMBER)
        if trial.state == TrialState.RUNNING and (number is None or _point(trial) not in points):
            # The process was killed before the trial had its values and its number.
            study.tell(trial.number, state=TrialState.FAIL)
        else:
            last_states[number] = trial.state
    for point, trial in points.items():
        last_state = last_states.get(trial.number)
        if last_state is None or (last_state == TrialState.FAIL and trial.state not in DONE):
            study.enqueue_trial(dict(point), user_attrs={NUMBER: trial.number})
    study.sampler = _sampler(search, len(study.trials))
    study.pruner = build.build(search.pruner) if search.pruner else optuna.pruners.NopPruner()
    return study


def _sampler(search: Search, num_known: int) -> optuna.samplers.BaseSampler:
    """Build the sampler.

    A resumed study gets another seed, because it would draw its first trials again otherwise.
    """
    arguments = search.sampler.model_dump(by_alias=True)
    if isinstance(arguments.get("seed"), int):
        arguments["seed"] += num_known
    return build.build(type(search.sampler).model_validate(arguments))


def trials_by_point(ledger: Ledger, space: Mapping[str, BaseDistribution]) -> dict[Point, Trial]:
    """Return the trial of each point, in the order of their numbers."""
    trials: dict[Point, Trial] = {}
    for trial in ledger.trials:
        point = {}
        for key, distribution in space.items():
            value = distribution.to_internal_repr(trial.typed[key.lstrip("+")])
            point[key] = distribution.to_external_repr(value)
        trials[frozenset(point.items())] = trial
    return trials


@dataclass
class DrawnPoint:
    """The trial of a point, and the draws that wait for its result.

    Equal draws wait for the result of the first one.
    """

    trial: Trial
    # This is the state in which the trial ended. It is empty before, and after a command that did
    # not finish the trial.
    end_state: str
    waiting: list[optuna.Trial] = field(default_factory=list)
    is_pruned: bool = False

    @classmethod
    def from_trial(cls, trial: Trial) -> "DrawnPoint":
        state = trial.state
        return cls(trial, state if state in DONE else "")


class Draws(Grid):
    """The trials of a study.

    A point that is drawn again is neither trained nor counted again. `make` returns the known or
    new trial of the drawn values.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: Mapping[str, BaseDistribution],
        ledger: Ledger,
        make: Callable[[Sequence[str]], Trial],
        *,
        objective: Objective,
        num_trials: int,
    ) -> None:
        self._study = study
        self._space = dict(space)
        self._make = make
        self._objective = objective
        self._num_trials = num_trials
        self._is_stuck = False  # until the next trial ends
        # This command does not start these points again, because they are trained, being trained,
        # or failed.
        self._points: dict[Point, DrawnPoint | None] = {}
        self._points_by_trial: dict[int, DrawnPoint] = {}  # by trial number
        points = trials_by_point(ledger, space)
        resumed_draws = []
        for frozen_trial in study.get_trials(deepcopy=False):
            point = _point(frozen_trial)  # The point is empty if the trial waits.
            if frozen_trial.state == TrialState.RUNNING:
                resumed_draws.append(resumed_trial(study, frozen_trial))
            elif point in points and points[point].state in DONE:
                self._points[point] = DrawnPoint.from_trial(points[point])
        super().__init__([trial for draw in resumed_draws for trial in self._begin(draw)])

    @property
    def note(self) -> str:
        """The reason for fewer points than requested, or an empty text."""
        if not self._is_stuck:
            return ""
        num_done = sum(
            drawn_point.trial.state in DONE
            for drawn_point in self._points.values()
            if drawn_point is not None
        )
        return (
            f"{type(self._study.sampler).__name__} drew only earlier points, "
            f"{MAX_REPEATS} times in a row: "
            f"{num_done} of {plural(self._num_trials, 'point')} done. Use another "
            "search.sampler, or a larger space."
        )

    def propose(self, num_free: int) -> Sequence[Trial]:
        """Return interrupted trials first, then those of new draws.

        Further trials wait in this object.
        """
        num_repeats = 0
        while (
            len(self._left) < num_free
            and len(self._points) < self._num_trials
            and not self._is_stuck
        ):
            num_points = len(self._points)
            self._left += self._begin(self._study.ask(self._space))
            num_repeats = num_repeats + 1 if len(self._points) == num_points else 0
            self._is_stuck = num_repeats == MAX_REPEATS
        trials, self._left = self._left[:num_free], self._left[num_free:]
        return trials

    def _begin(self, draw: optuna.Trial) -> list[Trial]:
        """Return the trial of a draw, if it is not done.

        The list is empty if its point is known or cannot be trained.
        """
        point = _point(draw)
        is_new = point not in self._points
        if is_new:
            try:
                trial = self._make([f"{key}={value}" for key, value in draw.params.items()])
                self._points[point] = DrawnPoint.from_trial(trial)
            except ConfigError as error:
                print(
                    f"Skipping a draw that cannot be trained: {' '.join(map(str, error.errors))}",
                    flush=True,
                )
                self._points[point] = None
        drawn_point = self._points[point]
        if drawn_point is None:
            self._study.tell(draw, state=TrialState.FAIL)
            return []
        draw.set_user_attr(NUMBER, drawn_point.trial.number)
        drawn_point.waiting.append(draw)
        self._tell(drawn_point)
        self._points_by_trial[drawn_point.trial.number] = drawn_point
        return [drawn_point.trial] if is_new and not drawn_point.end_state else []

    def should_prune(self, trial: Trial) -> bool:
        """Report the value of each epoch to Optuna, and return True if it prunes the trial."""
        drawn_point = self._points_by_trial[trial.number]
        metric, first_draw = self._objective.name, drawn_point.waiting[0]
        reported_values = self._study.trials[first_draw.number].intermediate_values
        values = {
            int(row["epoch"]) - 1: row[metric] for row in read_rows(trial.folder) if metric in row
        }
        new_steps = [step for step in values if step not in reported_values]
        for step in new_steps:  # Steps are counted from 0.
            first_draw.report(values[step], step)
        drawn_point.is_pruned = drawn_point.is_pruned or (
            bool(new_steps) and first_draw.should_prune()
        )
        return drawn_point.is_pruned

    def record_result(self, trial: Trial, state: str) -> None:
        """Report the result of a trial to Optuna."""
        self._is_stuck = False
        drawn_point = self._points_by_trial[trial.number]
        drawn_point.end_state = state
        self._tell(drawn_point)

    def _tell(self, drawn_point: DrawnPoint) -> None:
        """Report the result to the draws that wait, when the trial has ended.

        The next command resumes a stopped one.
        """
        if drawn_point.end_state in ("", "stopped"):
            return
        value = self._objective.value_in(drawn_point.trial.folder)
        for draw in drawn_point.waiting:
            if drawn_point.end_state == "pruned":
                self._study.tell(draw, state=TrialState.PRUNED)
            elif drawn_point.end_state == "failed" or value is None:
                self._study.tell(draw, state=TrialState.FAIL)
            else:
                self._study.tell(draw, value)
        drawn_point.waiting.clear()


def _point(trial: optuna.Trial | FrozenTrial) -> Point:
    return frozenset(trial.params.items())

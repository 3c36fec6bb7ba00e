"""A search: Optuna proposes trials, hears how they ended, and says which ones are poor while they run.

hydra-optuna-sweeper 1.3.0 needs Optuna 2, starts trials in batches that wait for their slowest, and cannot prune.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import TrialState

from lockstep.config import build
from lockstep.config.faults import ConfigError
from lockstep.config.sweep_space import Interval, Space
from lockstep.config.target_sections import Search
from lockstep.runs.naming import shown
from lockstep.sweeps.ledger import DONE, Ledger, Trial
from lockstep.sweeps.table import Objective, number
from lockstep.system.wording import plural

JOURNAL = "study.journal"  # everything Optuna knows, in the folder of the sweep
NUMBER = "trial"  # of the ledger, kept with Optuna's trial
MOST_REPEATS = 20  # draws in a row of what is known; then another point is taken, if they can be counted
Point = tuple[Any, ...]  # a place in the search space


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The search space in Optuna's terms."""
    return {key: _distribution(drawn) for key, drawn in space.items()}


def _distribution(drawn: Interval | tuple[str, ...]) -> BaseDistribution:
    if not isinstance(drawn, Interval):
        return CategoricalDistribution(drawn)
    ends = (drawn.low, drawn.high, *([drawn.step] if drawn.step else []))
    if all(isinstance(end, int) for end in ends):
        return IntDistribution(int(drawn.low), int(drawn.high), log=drawn.is_log, step=int(drawn.step or 1))
    return FloatDistribution(drawn.low, drawn.high, log=drawn.is_log, step=drawn.step)


def num_points(space: Mapping[str, BaseDistribution]) -> int | None:
    """How many different draws there are; None where they cannot be counted."""
    counts = [_count(drawn) for drawn in space.values()]
    return None if None in counts else math.prod(count for count in counts if count is not None)


def _count(drawn: BaseDistribution) -> int | None:
    if isinstance(drawn, CategoricalDistribution):
        return len(drawn.choices)
    assert isinstance(drawn, IntDistribution | FloatDistribution)
    return None if drawn.step is None else round((drawn.high - drawn.low) / drawn.step) + 1


def _values(drawn: BaseDistribution) -> Sequence[Any]:
    """All values of a distribution that has finitely many."""
    if isinstance(drawn, CategoricalDistribution):
        return drawn.choices
    assert isinstance(drawn, IntDistribution | FloatDistribution)
    return [drawn.low + place * (drawn.step or 0) for place in range(_count(drawn) or 0)]


def _place(drawn: BaseDistribution, value: Any) -> Any:
    """A key, equal for values that differ by rounding alone: the number of the value, where they can be counted."""
    if isinstance(drawn, CategoricalDistribution):
        return drawn.choices.index(value)
    assert isinstance(drawn, IntDistribution | FloatDistribution)
    return value if drawn.step is None else round((value - drawn.low) / drawn.step)


def _typed(drawn: BaseDistribution, text: str) -> Any:
    """The value that a distribution has drawn, from its override."""
    if isinstance(drawn, CategoricalDistribution):
        return text
    return int(text) if isinstance(drawn, IntDistribution) else float(text)


def study_in(
    ledger: Ledger, space: Mapping[str, BaseDistribution], search: Search, objectives: Sequence[Objective]
) -> optuna.Study:
    """The study of a sweep, from its file where there is one. Hold the sweep. Raises ConfigError.

    It asks first for the trials of the ledger that a file which was cut off or lost does not know.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    file = ledger.path / JOURNAL
    file.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)  # of a process that was killed
    directions = [StudyDirection.MAXIMIZE if objective.is_max else StudyDirection.MINIMIZE for objective in objectives]
    try:
        with open(file, "a+b") as journal:  # a full disk or a power cut leaves half a line, to which Optuna would add
            journal.seek(0)
            journal.truncate(journal.read().rfind(b"\n") + 1)
        storage = JournalStorage(JournalFileBackend(str(file)))
        study = optuna.create_study(storage=storage, study_name="study", directions=directions, load_if_exists=True)
    except (KeyError, OSError, ValueError) as error:
        raise ConfigError([f"{shown(file)} cannot be read: choose another sweep.name"]) from error
    if study.directions != directions:
        raise ConfigError([f"{shown(ledger.path)} optimizes something else: choose another sweep.name"])
    known = {trial.user_attrs.get(NUMBER) for trial in study.get_trials(deepcopy=False)}
    for trial in ledger.trials:
        if trial.number not in known:
            params = {key: _typed(drawn, trial.settings[key.lstrip("+")]) for key, drawn in space.items()}
            study.enqueue_trial(params, user_attrs={NUMBER: trial.number})
    study.sampler = _sampler(search, len(study.trials))
    study.pruner = build.build(search.pruner) if search.pruner is not None else optuna.pruners.NopPruner()
    return study


def _sampler(search: Search, num_known: int) -> optuna.samplers.BaseSampler:
    """The sampler; of a study that goes on with another seed, or it would draw its first trials again."""
    arguments = search.sampler.model_dump(by_alias=True)
    if isinstance(arguments.get("seed"), int):
        arguments["seed"] += num_known
    return build.build(type(search.sampler).model_validate(arguments))


class Draws:
    """The trials of a study, as a source of a sweep. What counts is what is trained: a point drawn again is not."""

    def __init__(
        self,
        study: optuna.Study,
        space: Mapping[str, BaseDistribution],
        ledger: Ledger,
        make: Callable[[Sequence[str]], Trial],
        *,
        objectives: Sequence[Objective],
        monitored: Objective,
        num_trials: int,
    ) -> None:
        self._study = study
        self._space = dict(space)
        self._make = make
        self._objectives = objectives
        self._monitored = monitored
        self._num_trials = num_trials
        self._num_points = num_points(space)
        self._is_stuck = False
        self._open: dict[int, list[optuna.Trial]] = {}  # a draw that is the same again waits for the first one
        # points this command need not begin: trained, being trained, and what has failed by now
        self._taken: dict[Point, Trial | None] = {}
        self._done: set[int] = {trial.number for trial in ledger.trials if trial.state in DONE}
        by_number = {trial.number: trial for trial in ledger.trials}
        frozen_trials = study.get_trials(deepcopy=False)
        for frozen in frozen_trials:
            number = frozen.user_attrs.get(NUMBER, -1)
            if number in self._done and frozen.state != TrialState.WAITING:
                self._taken[self._point(frozen.params)] = by_number[number]
        self._resumed: list[Trial] = []
        for frozen in frozen_trials:
            if frozen.state != TrialState.RUNNING:
                continue
            if frozen.user_attrs.get(NUMBER, -1) not in by_number:  # the process was killed before there was a run
                study.tell(frozen.number, state=TrialState.FAIL)
                continue
            # Optuna itself offers no way to go on with a trial of another process
            self._resumed += self._begun(optuna.Trial(study, frozen._trial_id))

    @property
    def total(self) -> int:
        """How many trials there are to be: as many as were asked for, or as there are points."""
        return min(self._num_trials, self._num_points or self._num_trials)

    @property
    def note(self) -> str:
        """Why there is nothing left to draw before as many trials are trained as were asked for; else empty."""
        num_done = len(self._done)
        if self._num_points is not None and len(self._taken) >= self._num_points < self._num_trials:
            every = "all " if num_done == self._num_points else ""
            verb = "is" if num_done == 1 and not every else "are"
            points = f"{every}{num_done} of {self._num_points} points {verb} trained"
            return f"The search space is exhausted: {points}, fewer than search.num_trials={self._num_trials}."
        if self._is_stuck:
            verb = "is" if self._num_trials == 1 else "are"
            what = (
                f"{type(self._study.sampler).__name__} has drawn {MOST_REPEATS} times in a row what is trained already"
            )
            return f"{what}: {num_done} of {plural(self._num_trials, 'trial')} {verb} done. Use another search.sampler."
        return ""

    def proposed(self, num_free: int) -> Sequence[Trial]:
        """Propose trials that were interrupted first, then new draws."""
        if self._resumed:
            trials, self._resumed = self._resumed[: max(num_free, 0)], self._resumed[max(num_free, 0) :]
            return trials
        trials: list[Trial] = []
        num_repeats = 0
        while len(trials) < num_free and len(self._taken) < self.total and not self._is_stuck:
            if num_repeats == MOST_REPEATS:
                self._is_stuck = not self._enqueue_another()
            num_taken = len(self._taken)
            trials += self._begun(self._drawn()) if not self._is_stuck else []
            num_repeats = num_repeats + 1 if len(self._taken) == num_taken else 0
        return trials

    def _drawn(self) -> optuna.Trial:
        try:
            return self._study.ask(self._space)
        except ValueError as error:  # known under this name with other values
            raise ConfigError([f"{error}: choose another sweep.name"]) from error
        except ImportError as error:
            raise ConfigError([f"search.sampler={type(self._study.sampler).__name__}: {error}"]) from error

    def _enqueue_another(self) -> bool:
        """Have the next draw be a point that was not taken; False where the points cannot be counted."""
        if self._num_points is None:
            return False
        every = itertools.product(*map(_values, self._space.values()))
        points = (dict(zip(self._space, values, strict=True)) for values in every)
        self._study.enqueue_trial(next(params for params in points if self._point(params) not in self._taken))
        return True

    def _point(self, params: Mapping[str, Any]) -> Point:
        return tuple(_place(drawn, params[key]) for key, drawn in self._space.items())

    def _begun(self, drawn: optuna.Trial) -> list[Trial]:
        """The trial of a draw; none where nothing is to be run: it is taken, or cannot be trained."""
        point = self._point(drawn.params)
        if point in self._taken:
            self._repeat(drawn, self._taken[point])
            return []
        try:
            trial = self._make([f"{key}={value}" for key, value in drawn.params.items()])
        except ConfigError as error:
            print(f"A draw that cannot be trained: {' '.join(error.faults)}", flush=True)
            self._taken[point] = None
            self._study.tell(drawn, state=TrialState.FAIL)
            return []
        self._taken[point] = trial
        drawn.set_user_attr(NUMBER, trial.number)
        self._open[trial.number] = [drawn]
        if trial.state in DONE:  # of a study that was lost
            self.ended(trial, trial.state)
            return []
        return [trial]

    def _repeat(self, drawn: optuna.Trial, trial: Trial | None) -> None:
        """Have a draw end as the trial of the same point has, or will."""
        if trial is None:
            self._study.tell(drawn, state=TrialState.FAIL)
            return
        drawn.set_user_attr(NUMBER, trial.number)
        if trial.number in self._open:
            self._open[trial.number].append(drawn)
        else:
            self._tell(drawn, trial, trial.state)

    def is_poor(self, trial: Trial) -> bool:
        """Report the epochs that are done to Optuna, and ask whether it would prune the trial."""
        if len(self._objectives) > 1:
            return False
        drawn, name = self._open[trial.number][0], self._objectives[0].name
        known = self._study.trials[drawn.number].intermediate_values
        is_new = False
        for row in trial.folder.read_metrics():
            value, step = number(row.get(name)), int(row["epoch"]) - 1  # Optuna counts from 0
            if value is not None and step not in known:
                drawn.report(value, step)
                is_new = True
        return is_new and bool(drawn.should_prune())

    def ended(self, trial: Trial, state: str) -> None:
        """Report the end of a trial to Optuna; a stopped trial stays open, and goes on with the next command."""
        if state == "stopped":
            return
        if state in DONE:
            self._done.add(trial.number)
        for drawn in self._open.pop(trial.number):
            self._tell(drawn, trial, state)

    def _tell(self, drawn: optuna.Trial, trial: Trial, state: str) -> None:
        values = [objective.of(trial.folder, self._monitored) for objective in self._objectives]
        if state == "pruned":
            self._study.tell(drawn, state=TrialState.PRUNED)
        elif state == "finished" and None not in values:
            self._study.tell(drawn, [value for value in values if value is not None])
        else:
            self._study.tell(drawn, state=TrialState.FAIL)


def objectives_of(search: Search, monitored: Objective) -> list[Objective]:
    """What a search optimizes."""
    chosen: dict[str, Any] | None = search.objectives
    return [Objective(name, kind == "max") for name, kind in chosen.items()] if chosen else [monitored]

"""A search: Optuna proposes trials, receives their results, and prunes poor ones.

hydra-optuna-sweeper 1.3.0 needs Optuna 2, starts trials in batches that wait for their slowest, and cannot prune.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from lockstep.config import build
from lockstep.config.errors import ConfigError
from lockstep.config.sweep_space import Interval, Space
from lockstep.config.target_sections import Search
from lockstep.runs.discovery import read_rows
from lockstep.runs.naming import shown
from lockstep.sweeps.course import Grid
from lockstep.sweeps.ledger import DONE, Ledger, Trial
from lockstep.sweeps.table import Objective
from lockstep.system.wording import plural

JOURNAL = "study.journal"  # Optuna's storage, in the folder of the sweep
NUMBER = "trial"  # attribute of Optuna's trial: the number in the ledger
MOST_REPEATS = 20  # this many draws of known points in a row end the search
Point = frozenset[tuple[str, Any]]  # of the search space


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions of a search space."""
    return {key: _distribution(drawn) for key, drawn in space.items()}


def _distribution(drawn: Interval | tuple[str, ...]) -> BaseDistribution:
    if not isinstance(drawn, Interval):
        return CategoricalDistribution(drawn)
    ends = (drawn.low, drawn.high, *([drawn.step] if drawn.step else []))
    if all(isinstance(end, int) for end in ends):
        return IntDistribution(int(drawn.low), int(drawn.high), log=drawn.is_log, step=int(drawn.step or 1))
    return FloatDistribution(drawn.low, drawn.high, log=drawn.is_log, step=drawn.step)


def _typed(drawn: BaseDistribution, text: str) -> Any:
    """Return a drawn value from its override."""
    if isinstance(drawn, CategoricalDistribution):
        return text
    return int(text) if isinstance(drawn, IntDistribution) else float(text)


def study_in(
    ledger: Ledger, space: Mapping[str, BaseDistribution], search: Search, objectives: Sequence[Objective]
) -> optuna.Study:
    """Open or create the study of a sweep, whose lock is held. Raises ConfigError.

    Trials of the ledger that a damaged or lost journal lacks are drawn first, and those that failed again.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    file = ledger.path / JOURNAL
    file.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)  # of a process that was killed
    directions = [StudyDirection.MAXIMIZE if objective.is_max else StudyDirection.MINIMIZE for objective in objectives]
    try:
        with open(file, "a+b") as journal:  # half a line, after a full disk or a power cut
            journal.seek(0)
            journal.truncate(journal.read().rfind(b"\n") + 1)
        storage = JournalStorage(JournalFileBackend(str(file)))
        study = optuna.create_study(storage=storage, study_name="study", directions=directions, load_if_exists=True)
    except (KeyError, OSError, ValueError) as error:
        raise ConfigError([f"{shown(file)} cannot be read: choose another sweep.name"]) from error
    if study.directions != directions:
        raise ConfigError([f"{shown(ledger.path)} optimizes something else: choose another sweep.name"])
    last = {trial.user_attrs.get(NUMBER): trial.state for trial in study.get_trials(deepcopy=False)}
    for trial in ledger.trials:
        if trial.number not in last or (last[trial.number] == TrialState.FAIL and trial.state not in DONE):
            params = {key: _typed(drawn, trial.settings[key.lstrip("+")]) for key, drawn in space.items()}
            study.enqueue_trial(params, user_attrs={NUMBER: trial.number})
    study.sampler = _sampler(search, len(study.trials))
    study.pruner = build.build(search.pruner) if search.pruner is not None else optuna.pruners.NopPruner()
    return study


def _sampler(search: Search, num_known: int) -> optuna.samplers.BaseSampler:
    """Build the sampler; a resumed study gets another seed, or it would draw its first trials again."""
    arguments = search.sampler.model_dump(by_alias=True)
    if isinstance(arguments.get("seed"), int):
        arguments["seed"] += num_known
    return build.build(type(search.sampler).model_validate(arguments))


class Draws(Grid):
    """The trials of a study. A point that is drawn again is neither trained nor counted again."""

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
        self._is_stuck = False  # until the next trial ends
        self._open: dict[int, list[optuna.Trial]] = {}  # equal draws wait for the result of the first one
        # points that this command does not start again: trained, being trained, failed
        self._taken: dict[Point, Trial | None] = {}
        by_number = {trial.number: trial for trial in ledger.trials}
        resumed = []
        for frozen in study.get_trials(deepcopy=False):
            trial = by_number.get(frozen.user_attrs.get(NUMBER, -1))
            if frozen.state == TrialState.RUNNING and trial is not None:
                # Optuna has no public way to resume a trial of another process
                resumed.append(optuna.Trial(study, frozen._trial_id))
            elif frozen.state == TrialState.RUNNING:  # killed before it had a run
                study.tell(frozen.number, state=TrialState.FAIL)
            elif frozen.state != TrialState.WAITING and trial is not None and trial.state in DONE:
                self._taken[_point(frozen)] = trial
        super().__init__([trial for drawn in resumed for trial in self._begun(drawn)])

    @property
    def note(self) -> str:
        """The reason for fewer trials than requested; otherwise empty."""
        if not self._is_stuck:
            return ""
        name = type(self._study.sampler).__name__
        num_done = sum(trial is not None and trial.state in DONE for trial in self._taken.values())
        done = f"{num_done} of {plural(self._num_trials, 'trial')} done"
        hint = "Use another search.sampler, or a larger space."
        return f"{name} drew only known points {MOST_REPEATS} times in a row: {done}. {hint}"

    def proposed(self, num_free: int) -> Sequence[Trial]:
        """Return interrupted trials first, then new draws."""
        trials, self._left = self._left[:num_free], self._left[num_free:]
        num_repeats = 0
        while len(trials) < num_free and len(self._taken) < self._num_trials and not self._is_stuck:
            num_taken = len(self._taken)
            trials += self._begun(self._study.ask(self._space))
            num_repeats = num_repeats + 1 if len(self._taken) == num_taken else 0
            self._is_stuck = num_repeats == MOST_REPEATS
        return trials

    def _begun(self, drawn: optuna.Trial) -> list[Trial]:
        """Return the trial of a draw; none if its point is known or cannot be trained."""
        point = _point(drawn)
        is_new = point not in self._taken
        if is_new:
            try:
                self._taken[point] = self._make([f"{key}={value}" for key, value in drawn.params.items()])
            except ConfigError as error:
                print(f"Skipping a draw that cannot be trained: {' '.join(error.errors)}", flush=True)
                self._taken[point] = None
        trial = self._taken[point]
        if trial is None:
            self._study.tell(drawn, state=TrialState.FAIL)
            return []
        drawn.set_user_attr(NUMBER, trial.number)
        if trial.number in self._open:
            self._open[trial.number].append(drawn)
        elif trial.state in DONE or not is_new:  # trained by this command, or before the journal was lost
            self._tell(drawn, trial, trial.state)
        else:
            self._open[trial.number] = [drawn]
            return [trial]
        return []

    def is_poor(self, trial: Trial) -> bool:
        """Report new epochs to Optuna. Returns True if it prunes the trial."""
        if len(self._objectives) > 1:
            return False
        drawn, name = self._open[trial.number][0], self._objectives[0].name
        known = self._study.trials[drawn.number].intermediate_values
        values = {int(row["epoch"]) - 1: row[name] for row in read_rows(trial.folder) if name in row}  # from 0
        new = [step for step in values if step not in known]
        for step in new:
            drawn.report(values[step], step)
        return bool(new) and drawn.should_prune()

    def ended(self, trial: Trial, state: str) -> None:
        """Report the result of a trial to Optuna; a stopped one stays open, and the next command resumes it."""
        self._is_stuck = False
        if state == "stopped":
            return
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


def _point(drawn: optuna.Trial | FrozenTrial) -> Point:
    """Return the drawn values, in any order of the overrides."""
    return frozenset(drawn.params.items())

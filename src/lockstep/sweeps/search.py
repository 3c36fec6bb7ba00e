"""A search: Optuna proposes trials, hears how they ended, and says which ones are poor while they run.

hydra-optuna-sweeper 1.3.0 needs Optuna 2, starts trials in batches that wait for their slowest, and cannot prune.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import TrialState

from lockstep import config as configuration
from lockstep.config import ConfigError
from lockstep.overrides import Interval, Space
from lockstep.run_folder import shown
from lockstep.schema import Search
from lockstep.sweeps.ledger import DONE, Ledger, Trial
from lockstep.sweeps.table import Objective, number

JOURNAL = "study.journal"  # everything Optuna knows, in the folder of the sweep
NUMBER = "trial"  # of the ledger, kept with Optuna's trial


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


def study_in(folder: Path, search: Search, objectives: Sequence[Objective]) -> optuna.Study:
    """The study of a sweep, from its file where there is one. Hold the sweep. Raises ConfigError."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    file = folder / JOURNAL
    file.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)  # of a process that was killed
    directions = [StudyDirection.MAXIMIZE if each.is_max else StudyDirection.MINIMIZE for each in objectives]
    try:
        storage = JournalStorage(JournalFileBackend(str(file)))
        study = optuna.create_study(storage=storage, study_name="study", directions=directions, load_if_exists=True)
    except (KeyError, OSError, ValueError) as error:
        raise ConfigError([f"{shown(file)} cannot be read: choose another sweep.name"]) from error
    if study.directions != directions:
        raise ConfigError([f"{shown(folder)} optimizes something else: choose another sweep.name"])
    study.sampler = _sampler(search, len(study.trials))
    study.pruner = configuration.build(search.pruner) if search.pruner is not None else optuna.pruners.NopPruner()
    return study


def _sampler(search: Search, num_known: int) -> optuna.samplers.BaseSampler:
    """The sampler; of a study that goes on with another seed, or it would draw its first trials again."""
    arguments = search.sampler.model_dump(by_alias=True)
    if isinstance(arguments.get("seed"), int):
        arguments["seed"] += num_known
    return configuration.build(type(search.sampler).model_validate(arguments))


class Draws:
    """The trials of a study, as a source of a sweep."""

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
        self._num_failed = 0
        self._open: dict[int, list[optuna.Trial]] = {}  # a draw that is the same again waits for the first one
        by_number = {trial.number: trial for trial in ledger.trials}
        self._resumed: list[Trial] = []
        for frozen in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            trial = by_number.get(frozen.user_attrs.get(NUMBER, -1))
            if trial is None:  # the process was killed before there was a run
                study.tell(frozen.number, state=TrialState.FAIL)
                continue
            # Optuna itself offers no way to go on with a trial of another process
            self._resumed += self._begun(optuna.Trial(study, frozen._trial_id))

    def _num_left(self) -> int:
        counted = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
        done = self._study.get_trials(deepcopy=False, states=counted)
        return self._num_trials - len(done) - self._num_failed

    def proposed(self, num_free: int) -> Sequence[Trial]:
        """What was interrupted first, then new draws."""
        if self._resumed:
            found, self._resumed = self._resumed[: max(num_free, 0)], self._resumed[max(num_free, 0) :]
            return found
        found = []
        while len(found) < num_free and self._num_left() > 0:
            drawn = self._drawn()
            try:
                found += self._begun(drawn)
            except ConfigError as error:
                print(f"A draw that cannot be trained: {' '.join(error.faults)}", flush=True)
                self._study.tell(drawn, state=TrialState.FAIL)
                self._num_failed += 1
        return found

    def _drawn(self) -> optuna.Trial:
        try:
            return self._study.ask(self._space)
        except ValueError as error:  # known under this name with other values
            raise ConfigError([f"{error}: choose another sweep.name"]) from error
        except ImportError as error:
            raise ConfigError([f"search.sampler={type(self._study.sampler).__name__}: {error}"]) from error

    def _begun(self, drawn: optuna.Trial) -> list[Trial]:
        """The trial of a draw; none where nothing is to be run: it is done, or runs already. Raises ConfigError."""
        trial = self._make([f"{key}={value}" for key, value in drawn.params.items()])
        drawn.set_user_attr(NUMBER, trial.number)
        self._open.setdefault(trial.number, []).append(drawn)
        if trial.state in DONE:
            self.ended(trial, trial.state)
            return []
        return [trial] if len(self._open[trial.number]) == 1 else []

    def is_poor(self, trial: Trial) -> bool:
        """Tell Optuna of the epochs that are done, and ask."""
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
        """Tell Optuna; a stopped trial stays open, and goes on with the next command."""
        if state == "stopped":
            return
        values = [each.of(trial.folder, self._monitored) for each in self._objectives]
        found = [value for value in values if value is not None]
        for drawn in self._open.pop(trial.number):
            if state == "pruned":
                self._study.tell(drawn, state=TrialState.PRUNED)
            elif state == "finished" and len(found) == len(values):
                self._study.tell(drawn, found)
            else:
                self._num_failed += 1
                self._study.tell(drawn, state=TrialState.FAIL)


def objectives_of(search: Search, monitored: Objective) -> list[Objective]:
    """What a search optimizes."""
    chosen: dict[str, Any] | None = search.objectives
    return [Objective(name, kind == "max") for name, kind in chosen.items()] if chosen else [monitored]

"""A search: Optuna proposes trials, hears how they ended, and says which ones are poor while they run.

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
from lockstep.runs.naming import shown
from lockstep.sweeps.course import Grid
from lockstep.sweeps.ledger import DONE, Ledger, Trial
from lockstep.sweeps.table import Objective, number
from lockstep.system.wording import plural

JOURNAL = "study.journal"  # everything Optuna knows, in the folder of the sweep
NUMBER = "trial"  # of the ledger, kept with Optuna's trial
MOST_REPEATS = 20  # draws in a row of what is known end the search
Point = frozenset[tuple[str, Any]]  # a place in the search space


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


class Draws(Grid):
    """The trials of a study. What counts is what is trained: a point drawn again is not."""

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
        self._open: dict[int, list[optuna.Trial]] = {}  # a draw that is the same again waits for the first one
        # points this command need not begin: trained, being trained, and what has failed by now
        self._taken: dict[Point, Trial | None] = {}
        by_number = {trial.number: trial for trial in ledger.trials}
        resumed = []
        for frozen in study.get_trials(deepcopy=False):
            trial = by_number.get(frozen.user_attrs.get(NUMBER, -1))
            if frozen.state == TrialState.RUNNING and trial is not None:
                # Optuna itself offers no way to resume a trial of another process
                resumed.append(optuna.Trial(study, frozen._trial_id))
            elif frozen.state == TrialState.RUNNING:  # the process was killed before there was a run
                study.tell(frozen.number, state=TrialState.FAIL)
            elif frozen.state != TrialState.WAITING and trial is not None and trial.state in DONE:
                self._taken[_point(frozen)] = trial
        super().__init__([trial for drawn in resumed for trial in self._begun(drawn)])

    @property
    def note(self) -> str:
        """Why fewer trials are trained than were asked for; else empty."""
        if not self._is_stuck:
            return ""
        name = type(self._study.sampler).__name__
        num_done = sum(trial is not None and trial.state in DONE for trial in self._taken.values())
        done = f"{num_done} of {plural(self._num_trials, 'trial')} done"
        hint = "Use another search.sampler, or a larger space."
        return f"{name} has drawn {MOST_REPEATS} times in a row what is trained already: {done}. {hint}"

    def proposed(self, num_free: int) -> Sequence[Trial]:
        """Propose trials that were interrupted first, then new draws."""
        trials, self._left = self._left[:num_free], self._left[num_free:]
        num_repeats = 0
        while len(trials) < num_free and len(self._taken) < self._num_trials and not self._is_stuck:
            num_taken = len(self._taken)
            trials += self._begun(self._drawn())
            num_repeats = num_repeats + 1 if len(self._taken) == num_taken else 0
            self._is_stuck = num_repeats == MOST_REPEATS
        return trials

    def _drawn(self) -> optuna.Trial:
        try:
            return self._study.ask(self._space)
        except ValueError as error:  # known under this name with other values
            raise ConfigError([f"{error}: choose another sweep.name"]) from error
        except ImportError as error:
            raise ConfigError([f"search.sampler={type(self._study.sampler).__name__}: {error}"]) from error

    def _begun(self, drawn: optuna.Trial) -> list[Trial]:
        """The trial of a draw; none where nothing is to be run: it is taken, or cannot be trained."""
        point = _point(drawn)
        is_new = point not in self._taken
        if is_new:
            try:
                self._taken[point] = self._make([f"{key}={value}" for key, value in drawn.params.items()])
            except ConfigError as error:
                print(f"A draw that cannot be trained: {' '.join(error.errors)}", flush=True)
                self._taken[point] = None
        trial = self._taken[point]
        if trial is None:
            self._study.tell(drawn, state=TrialState.FAIL)
            return []
        drawn.set_user_attr(NUMBER, trial.number)
        if trial.number in self._open:
            self._open[trial.number].append(drawn)
        elif trial.state in DONE or not is_new:  # trained by this command, or for a study that was lost
            self._tell(drawn, trial, trial.state)
        else:
            self._open[trial.number] = [drawn]
            return [trial]
        return []

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
        """Report the end of a trial to Optuna; a stopped trial stays open, and the next command resumes it."""
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
    """What was drawn; of a study whose settings were typed in another order, the same."""
    return frozenset(drawn.params.items())

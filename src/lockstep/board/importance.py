"""Computes the importance of the settings of a search with Optuna.

The journal of the study is only read.
"""

import random
from pathlib import Path

import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from lockstep.runs.files import JsonObject, open_regular
from lockstep.runs.folder import JOURNAL

# The best quarter of 20 finished trials is five, the minimum that Optuna recommends.
MIN_TRIALS = 20
SHUFFLES = 19  # Chance exceeds the largest of 19 results in one case of 20.


def importance_in(sweep: Path) -> JsonObject:
    """Return the importances of the settings for the objective, the largest first.

    Their sum is 1. `chance` has the maximum that each setting reaches if the values are shuffled
    over the trials, in the same unit. Both are empty below MIN_TRIALS finished trials. Points that
    were drawn again count once. Raises OSError, KeyError or ValueError for a journal that is
    missing or damaged.
    """
    journal = sweep / JOURNAL
    # Optuna would create a missing journal, and wait for a pipe.
    with open(journal, "rb", opener=open_regular):
        storage = JournalStorage(JournalFileBackend(str(journal)))
    study = optuna.load_study(study_name="study", storage=storage)
    finished_trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    points = {frozenset(trial.params.items()): trial for trial in finished_trials}
    result = {"num_finished": len(points), "least": MIN_TRIALS, "importances": {}, "chance": {}}
    if len(points) >= MIN_TRIALS:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        finished_study = optuna.create_study(direction=study.direction)
        for trial in points.values():
            finished_study.add_trial(
                create_trial(
                    params=trial.params, distributions=trial.distributions, value=trial.value
                )
            )
        evaluator = PedAnovaImportanceEvaluator(target_quantile=0.25)
        importances = evaluator.evaluate(finished_study)
        shuffles = [
            evaluator.evaluate(_shuffle_values(finished_study, seed)) for seed in range(SHUFFLES)
        ]
        total = sum(importances.values()) or 1.0  # All are 0 if the values are equal.
        result["importances"] = {key: value / total for key, value in importances.items()}
        result["chance"] = {
            key: max(shuffle[key] for shuffle in shuffles) / total for key in importances
        }
    return result


def _shuffle_values(study: optuna.Study, seed: int) -> optuna.Study:
    trials = study.get_trials(deepcopy=False)
    values = [trial.value for trial in trials]
    random.Random(seed).shuffle(values)
    for trial, value in zip(trials, values, strict=True):
        trial.value = value
    return study

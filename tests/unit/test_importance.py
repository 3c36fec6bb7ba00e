"""The importance of settings on the board, against Optuna on a study of its own."""

import os
import random
from pathlib import Path
from typing import Literal

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from lockstep.board.importance import MIN_TRIALS, importance_in
from lockstep.sweeps.search import JOURNAL

SPACE = {
    "optimizer.lr": FloatDistribution(0.001, 1, log=True),
    "model.width": IntDistribution(8, 64, step=8),
    "optimizer": CategoricalDistribution(("sgd", "adamw")),
}


Direction = Literal["maximize", "minimize"]


def study_of(journal: Path | None, direction: Direction) -> optuna.Study:
    storage = JournalStorage(JournalFileBackend(str(journal))) if journal else None
    sampler = optuna.samplers.RandomSampler(seed=0)
    return optuna.create_study(
        study_name="study", storage=storage, direction=direction, sampler=sampler
    )


def train(study: optuna.Study, num_trials: int) -> None:
    rng = random.Random(0)
    for _ in range(num_trials):
        trial = study.ask(SPACE)
        width, rate = trial.params["model.width"], trial.params["optimizer.lr"]
        study.tell(trial, width / 64 - 3 * abs(rate - 0.1) + 0.1 * rng.random())


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # of each line of the journal
    return tmp_path / JOURNAL


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_importances_as_optuna(journal: Path, direction: Direction) -> None:
    searched = study_of(journal, direction)
    train(searched, 40)
    searched.tell(searched.ask(SPACE), state=optuna.trial.TrialState.PRUNED)
    searched.ask(SPACE)  # still training
    searched.add_trial(searched.trials[0])  # drawn again
    alone = study_of(None, direction)
    train(alone, 40)
    expected = get_param_importances(
        alone, evaluator=PedAnovaImportanceEvaluator(target_quantile=0.25)
    )
    found = importance_in(journal.parent)
    assert found["num_finished"] == 40
    assert list(found["importances"]) == list(expected)
    assert found["importances"] == pytest.approx(expected)


def test_importance_running_search(journal: Path) -> None:
    """Reading changes no byte of the journal, whose last line is being written."""
    train(study_of(journal, "maximize"), MIN_TRIALS)
    with open(journal, "ab") as file:
        file.write(b'{"op_code": 4, "worker_id')
    before = journal.read_bytes()
    assert importance_in(journal.parent)["num_finished"] == MIN_TRIALS
    assert journal.read_bytes() == before
    assert [path.name for path in journal.parent.iterdir()] == [JOURNAL]

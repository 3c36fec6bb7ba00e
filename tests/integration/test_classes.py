"""Trainings on unequal classes: cut in the middle of an epoch and resumed on other workers; weights settled once."""

import csv
import gzip
import json
from pathlib import Path

import pytest
import torch

from lockstep.config.composing.compose import DEFAULT
from lockstep.config.errors import ConfigError
from lockstep.config.saved import config_file
from lockstep.config.saved_run import change_config
from tests.support.exact import cut_after, train
from tests.support.harness import difference, train_all, write_run
from tests.support.recipes import PLAIN, TURNED, UNEQUAL, on_data


@pytest.mark.processes
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param((*UNEQUAL, "data.balance=1", "augment.rotation=20"), id="balance"),
        pytest.param((*UNEQUAL, "task.class_weights=balanced"), id="weights", marks=pytest.mark.full),
        pytest.param((*TURNED, "data.balance=0.7"), id="Dataset", marks=pytest.mark.full),
    ],
)
def test_a_training_goes_on_in_the_middle_of_an_epoch_on_other_workers(tmp_path: Path, settings: tuple[str]) -> None:
    alone = write_run(tmp_path / "alone", settings)
    assert train(alone) == 0
    cut = write_run(tmp_path / "cut", settings)
    cut_after(cut, 2)  # of 5 in an epoch
    config_file.save(change_config(cut, config_file.load(cut.config), ["trainer.devices=3"], DEFAULT), cut.config)
    train_all([cut], 3)
    assert difference(alone, cut) <= 1e-12


def test_balanced_class_weights_are_numbers_from_the_first_step_on(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", (*UNEQUAL, "task.class_weights=balanced"))
    cut_after(run, 1)
    saved = config_file.load(run.config)
    weights = saved.task.arguments()["class_weights"]
    classes = json.loads(gzip.decompress(run.images.read_bytes()))["train"]["targets"]
    assert weights == [len(classes) / (10 * classes.count(number)) for number in range(10)]
    kept = change_config(run, saved, ["task.class_weights=balanced"], DEFAULT)  # as an experiment of a resume sets it
    assert kept.task.arguments()["class_weights"] == weights
    given = saved.model_copy(update={"task": saved.task.model_copy(update={"class_weights": [1.0] * 9 + [2.0]})})
    with pytest.raises(ConfigError, match=r"class_weights=balanced cannot change on resume, this run has"):
        change_config(run, given, ["task.class_weights=balanced"], DEFAULT)


@pytest.mark.full
@pytest.mark.processes
def test_the_predictions_of_a_fold_are_the_same_bytes_on_any_number_of_workers(tmp_path: Path) -> None:
    fold = (*on_data("data=digits", "data.folds=5", "data.fold=1"), "trainer.limit_train_batches=3")
    runs = [write_run(tmp_path / str(count), (*fold, f"trainer.devices={count}")) for count in (1, 2, 3)]
    for count, run in enumerate(runs, 1):
        train_all([run], count)
    alone, *others = (run.fold_rows.read_bytes() for run in runs)
    assert others == [alone, alone]
    rows = list(csv.DictReader(alone.decode().splitlines()))
    digits = [str(digit) for digit in range(10)]
    assert list(rows[0]) == ["file", "truth", "prediction", *digits, "fold"]
    names = json.loads(gzip.decompress(runs[0].images.read_bytes()))["test"]["names"]
    assert [row["file"] for row in rows] == names
    for row in rows:
        assert row["fold"] == "1"
        assert float(row[row["prediction"]]) == max(float(row[digit]) for digit in digits)


@pytest.mark.parametrize("settings", [("callbacks.checkpoint=null", "callbacks.last=null"), ("callbacks=ema",), PLAIN])
def test_the_predictions_of_a_fold_are_those_of_the_tested_network(tmp_path: Path, settings: tuple[str, ...]) -> None:
    fold = ("data=digits", "data.folds=5", "model.width=2", "trainer.max_epochs=1", "trainer.limit_train_batches=5")
    run = write_run(tmp_path / "run", (*fold, *settings))
    assert train(run) == 0
    if settings == PLAIN:  # whose predictions are not known
        assert not run.fold_rows.exists()
        return
    rows = list(csv.DictReader(run.fold_rows.read_text().splitlines()))
    hits = sum(row["truth"] == row["prediction"] for row in rows)
    assert hits / len(rows) == pytest.approx(run.read_summary()["test_accuracy"], rel=1e-6)


def test_fold_predictions_of_two_threads(tmp_path: Path) -> None:
    fold = ("data=digits", "data.folds=2", "model.width=2", "trainer.max_epochs=1", "trainer.limit_train_batches=5")
    run = write_run(tmp_path / "run", (*fold, "callbacks.checkpoint=null", "callbacks.last=null"))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert train(run) == 0
    finally:
        torch.set_num_threads(before)
    assert len(run.fold_rows.read_text().splitlines()) == 900
    summary = run.read_summary()
    assert summary["fold_weights_sha256"] == summary["weights_sha256"]  # without best.ckpt the last network is tested

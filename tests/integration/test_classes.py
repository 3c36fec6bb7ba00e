"""Trainings on unequal classes and on folds: class weights, and the predictions of a fold."""

import gzip
import json
from pathlib import Path

import pytest

from lockstep.config.composing.compose import DEFAULT
from lockstep.config.saved import config_file
from lockstep.config.saved_run import change_run
from tests.support.commands import rows_of
from tests.support.exact import cut_after, trained
from tests.support.harness import train_all, write_run
from tests.support.recipes import PLAIN, UNEQUAL, on_data


def test_class_weights_balanced_saved(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", (*UNEQUAL, "task.class_weights=balanced"))
    cut_after(run, 1)
    saved = config_file.load(run.config)
    weights = saved.task.arguments()["class_weights"]
    classes = json.loads(gzip.decompress(run.images.read_bytes()))["train"]["targets"]
    assert weights == [len(classes) / (10 * classes.count(number)) for number in range(10)]
    kept = change_run(
        run, saved, ["task.class_weights=balanced"], DEFAULT
    ).config  # as an experiment of a resume sets it
    assert kept.task.arguments()["class_weights"] == weights


@pytest.mark.full
@pytest.mark.processes
def test_fold_rows_any_workers(tmp_path: Path) -> None:
    fold = (*on_data("data=digits", "data.folds=5", "data.fold=1"), "trainer.limit_train_batches=3")
    alone = trained(tmp_path / "alone", fold)
    together = write_run(
        tmp_path / "together", (*fold, "trainer.devices=3", "trainer.worker_weights=[2,0,1]")
    )
    train_all([together], 3)
    assert together.fold_rows.read_bytes() == alone.fold_rows.read_bytes()
    rows = rows_of(alone.fold_rows)
    names = json.loads(gzip.decompress(alone.images.read_bytes()))["test"]["names"]
    assert [row["file"] for row in rows] == names


@pytest.mark.full
@pytest.mark.parametrize(
    "settings", [("callbacks.checkpoint=null", "callbacks.last=null"), ("callbacks=ema",), PLAIN]
)
def test_fold_rows_tested_network(tmp_path: Path, settings: tuple[str, ...]) -> None:
    fold = (
        "data=digits",
        "data.folds=5",
        "model.width=2",
        "trainer.max_epochs=1",
        "trainer.limit_train_batches=5",
    )
    run = trained(tmp_path / "run", (*fold, *settings))
    if settings == PLAIN:  # whose predictions are not known
        assert not run.fold_rows.exists()
        return
    rows = rows_of(run.fold_rows)
    hits = sum(row["truth"] == row["prediction"] for row in rows)
    assert hits / len(rows) == pytest.approx(run.read_summary()["test_accuracy"], rel=1e-6)

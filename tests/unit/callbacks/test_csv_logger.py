"""The CSV logger keeps the rows of earlier sessions, and loses none by a kill."""

import csv
from pathlib import Path

import pytest
from lightning.pytorch.utilities import rank_zero_only

from lockstep.callbacks import ResumableCSVLogger


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "csv" / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def written(folder: Path, *points: tuple[int, dict[str, float]], purge_step: int = 0) -> ResumableCSVLogger:
    logger = ResumableCSVLogger(save_dir=str(folder), purge_step=purge_step)
    for step, values in points:
        logger.log_metrics({**values}, step)
    logger.save()
    return logger


def test_steps_that_are_trained_again_replace_the_old_ones(tmp_path: Path) -> None:
    written(tmp_path, (1, {"loss": 3.0}), (2, {"loss": 2.0}), (3, {"loss": 9.0}))
    written(tmp_path, (3, {"loss": 1.0}), purge_step=3)
    assert rows(tmp_path) == [{"step": str(step), "loss": str(loss)} for step, loss in ((1, 3.0), (2, 2.0), (3, 1.0))]


def test_a_test_after_the_last_step_is_replaced_and_its_validation_is_kept(tmp_path: Path) -> None:
    written(tmp_path, (4, {"val/loss": 2.0}), (4, {"test/loss": 2.5}))
    written(tmp_path, (4, {"test/loss": 1.5}), purge_step=5)
    assert rows(tmp_path) == [
        {"step": "4", "val/loss": "2.0", "test/loss": ""},
        {"step": "4", "val/loss": "", "test/loss": "1.5"},
    ]


def test_a_new_column_keeps_the_rows_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = written(tmp_path, (1, {"a": 1.0}))
    logger.log_metrics({"b": 2.0}, 2)
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *given, **folders: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            logger.save()
    assert rows(tmp_path) == [{"step": "1", "a": "1.0"}], "killed"
    logger.finalize("success")
    assert rows(tmp_path) == [{"step": "1", "a": "1.0", "b": ""}, {"step": "2", "a": "", "b": "2.0"}]


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = written(tmp_path, (1, {"a": 1.0}))
    _ = logger.experiment
    logger.finalize("success")
    assert list(tmp_path.iterdir()) == []

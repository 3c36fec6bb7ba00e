"""Printed counts are those of images that were used."""

import json
from pathlib import Path

import pytest

from tests.support.commands import latest, lockstep
from tests.support.harness import SMALL

pytestmark = [pytest.mark.full, pytest.mark.processes]
# 3 batches of 16 of 70 images, 1 of 10 of 23, 2 of 10 of 31
LIMITS = ["trainer.limit_train_batches=3", "trainer.limit_val_batches=1", "trainer.limit_test_batches=2"]
ONE = ["trainer.max_epochs=1", "eval_batch_size=1", "trainer.limit_test_batches=1", "trainer.limit_train_batches=1"]


def test_limited_batches_are_counted_as_what_is_left_of_the_images(tmp_path: Path) -> None:
    done = lockstep(tmp_path, "train", *SMALL, "trainer.devices=2", *LIMITS)
    assert "48 of 70 train, 10 of 23 val, 20 of 31 test images" in done.stdout, done.stderr
    summary = latest(tmp_path).read_summary()
    assert [summary[f"{name}_images"] for name in ("train", "val", "test")] == [48, 10, 20]
    assert latest(tmp_path).read_status()["train_images"] == 48
    assert " on 20 test images" in lockstep(tmp_path, "eval", "latest").stdout
    done = lockstep(tmp_path, "eval", "latest", "--split", "val", "--devices", "1")
    assert " on 10 val images" in done.stdout


def test_what_was_not_tested_is_not_counted_as_tested(tmp_path: Path) -> None:
    sweep = ("seed=0,1", "sweep.test=none", "hydra.sweep.dir=sweep")
    done = lockstep(tmp_path, "train", "-m", *SMALL, "trainer.devices=2", *ONE, *sweep)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "sweep/0/summary.json").read_text())
    assert (summary["test_accuracy"], summary["test_images"]) == (None, None)
    assert summary["train_images"] == 16

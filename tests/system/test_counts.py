"""Printed counts are those of images that were used."""

from pathlib import Path

import pytest

from tests.support.commands import latest, lockstep
from tests.support.harness import SMALL

pytestmark = [pytest.mark.full, pytest.mark.processes]
# 3 batches of 16 of 70 images, 1 of 10 of 23, 2 of 10 of 31
LIMITS = [
    "trainer.limit_train_batches=3",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=2",
]


def test_counts_of_limited_batches(tmp_path: Path) -> None:
    done = lockstep(tmp_path, "train", *SMALL, "trainer.devices=2", *LIMITS)
    assert "48 of 70 train, 10 of 23 val, 20 of 31 test images" in done.stdout, done.stderr
    summary = latest(tmp_path).read_summary()
    assert [summary[f"{name}_images"] for name in ("train", "val", "test")] == [48, 10, 20]
    assert " on 20 test images" in lockstep(tmp_path, "eval", "latest").stdout

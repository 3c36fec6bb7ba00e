"""Printed counts are those of images that were used, and one of them is one image."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.runs.folder import RunFolder
from tests.support.commands import run
from tests.support.harness import SMALL, command
from tests.support.image_files import write_image

pytestmark = [pytest.mark.full, pytest.mark.processes]
# 3 batches of 16 of 70 images, 1 of 10 of 23, 2 of 10 of 31
LIMITS = ["trainer.limit_train_batches=3", "trainer.limit_val_batches=1", "trainer.limit_test_batches=2"]
ONE = ["trainer.max_epochs=1", "eval_batch_size=1", "trainer.limit_test_batches=1", "trainer.limit_train_batches=1"]


def lockstep(cwd: Path, *words: str | Path) -> str:
    done = run([sys.executable, "-m", "lockstep", *words], cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def trained(cwd: Path, *overrides: str, first: Sequence[str] = ()) -> str:
    done = run(command(*first, *SMALL, "trainer.devices=2", *overrides), cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_limited_batches_are_counted_as_what_is_left_of_the_images(tmp_path: Path) -> None:
    said = trained(tmp_path, *LIMITS)
    assert "48 of 70 train, 10 of 23 val, 20 of 31 test images of 1x16x16" in said
    assert " on 20 images" in said
    folder = RunFolder((tmp_path / "outputs/latest").resolve())
    for facts, names in ((folder.read_summary(), ("train", "val", "test")), (folder.read_status(), ("train",))):
        counts = {"train": 48, "val": 10, "test": 20}
        assert [facts[f"{name}_images"] for name in names] == [counts[name] for name in names]
    assert " on 20 test images" in lockstep(tmp_path, "eval", "latest")
    assert " on 10 val images" in lockstep(tmp_path, "eval", "latest", "--split", "val", "--devices", "1")


def test_one_is_one(tmp_path: Path) -> None:
    said = trained(tmp_path, *ONE)
    assert "Finished 1 epoch\n" in said
    assert " on 1 image\n" in said
    assert " on 1 test image\n" in lockstep(tmp_path, "eval", "latest", "--devices", "1")
    write_image(tmp_path / "photo.png", seed=0, height=16, width=16)
    out = tmp_path / "out.csv"
    words = ["predict", "latest", tmp_path / "photo.png", "--output", out, "--devices", "1"]
    assert lockstep(tmp_path, *words) == f"1 prediction in {out}\n"


def test_what_was_not_tested_is_not_counted_as_tested(tmp_path: Path) -> None:
    trained(tmp_path, *ONE, "seed=0,1", "sweep.test=none", "hydra.sweep.dir=sweep", first=["-m"])
    summary = json.loads((tmp_path / "sweep/0/summary.json").read_text())
    assert (summary["test_accuracy"], summary["test_images"]) == (None, None)
    assert summary["train_images"] == 16

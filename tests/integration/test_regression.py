"""A regression of numbers far from 0, with the default learning rate."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import lockstep
from tests.support.harness import train_all, write_run
from tests.support.recipes import on_data

pytestmark = [pytest.mark.full, pytest.mark.processes]
PARTS = {"train": 400, "val": 50, "test": 50}


def write_numbers(folder: Path) -> tuple[str, ...]:
    """Write digits with their ink, scaled to numbers from 30 to 100, and return the settings of a training."""
    source: Any = load_digits()
    images, splits = source.data[:500], [split for split, count in PARTS.items() for _ in range(count)]
    ink = images.mean(1)
    numbers = 30 + 70 * (ink - ink.min()) / np.ptp(ink)
    folder.mkdir()
    for row, pixels in enumerate(images):
        Image.fromarray((15 * pixels).astype(np.uint8).reshape(8, 8)).save(folder / f"{row}.png")
    with open(folder / "list.csv", "w", newline="") as file:
        rows = [(f"{row}.png", f"{number:.4f}", splits[row]) for row, number in enumerate(numbers)]
        csv.writer(file).writerows([("path", "ink", "split"), *rows])
    columns = ("data.path_column=path", "data.target_columns=[ink]", "data.targets=numbers", "data.split_column=split")
    data = on_data("data=list", f"data.file={folder / 'list.csv'}", *columns, "data.image_size=8", "data.num_workers=1")
    plain = ("augment.crop_padding=0", "augment.flip=false", "augment.cutout=0", "optimizer.lr=0.1")
    return (*data, *plain, "trainer.limit_train_batches=null", "data.channels=1", "model.dropout=0", "task=regression")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_numbers_far_from_zero_converge(tmp_path: Path, precision: str) -> None:
    settings = write_numbers(tmp_path / "images")
    run = write_run(tmp_path / "run", (*settings, f"trainer.precision={precision}", "trainer.max_epochs=4"))
    train_all([run], 1)
    assert run.read_summary()["test_mae"] < 5  # the numbers have a standard deviation of 10
    predictions = lockstep.load(run.path, trust=True)(tmp_path / "images")
    values = torch.stack([one.values for one in predictions])
    assert 50 < values.mean() < 90
    assert not torch.equal(values, values.bfloat16().float())

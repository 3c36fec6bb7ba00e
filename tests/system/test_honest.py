"""docs/data.md, "Is my test set honest?", as typed, but for labels: test_labels.py."""

import gzip
import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image
from sklearn.datasets import load_sample_image

from tests.support import pages
from tests.support.commands import latest, lockstep
from tests.support.harness import ROOT

pytestmark = [pytest.mark.full, pytest.mark.processes]
PAGE = ROOT / "docs" / "data.md"
SMALL = (
    *("data.image_size=32", "data.cache=null", "model.width=4", "trainer.max_epochs=1", "global_batch_size=16"),
    *("strategy=cpu", "trainer.devices=1", "callbacks.pictures=null"),
)
NUM_PLANTS, NEW, SHOTS, SIDE = 12, 7, 3, 96  # plant 7 is of 1 June


def write_flowers(root: Path) -> None:
    """Write three shots of each of 12 parts of two photographs, a part a day from 25 May 2026 on."""
    for name in ("china", "flower"):
        photograph = load_sample_image(f"{name}.jpg")
        for plant in range(NUM_PLANTS):
            top, left = SIDE * (plant // 4) + 130, SIDE * (plant % 4) + 100
            for shot in range(SHOTS):
                part = photograph[top + shot : top + SIDE, left : left + SIDE - shot].astype(np.float64)
                picture = Image.fromarray((part * (1 - 0.1 * shot)).astype(np.uint8))
                exif = Image.Exif()
                day = date(2026, 5, 25) + timedelta(days=plant)
                exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = f"{day:%Y:%m:%d} 12:00:00"
                path = root / name / f"p{plant:02}{name[0]}_{shot}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                picture.save(path, quality=90 - 10 * shot, exif=exif)


def leaks(cwd: Path, code: int, *words: str) -> list[dict[str, Any]]:
    """Run `lockstep data check`. Returns the leaks it finds."""
    done = lockstep(cwd, *words[1:], "data.cache=null", "--json")
    assert done.returncode == code, done.stderr
    return [copies for copies in json.loads(done.stdout)["copies"] if "leak" in copies["kind"]]


def trained(cwd: Path, *words: str) -> dict[str, list[str]]:
    """Train an epoch. Returns the names of the images of each split, by the record of the run."""
    done = lockstep(cwd, "train", *words[2:], *SMALL)
    assert done.returncode == 0, done.stderr
    record = json.loads(gzip.decompress(latest(cwd).images.read_bytes()))
    return {split: record[split]["names"] for split in ("train", "val", "test")}


def test_groups_near_duplicates_and_the_newest_images_as_typed(tmp_path: Path) -> None:
    write_flowers(tmp_path / "flowers")
    (grouped,) = pages.commands(PAGE, "data.group=")
    (newest,) = pages.commands(PAGE, "data.test_after=")
    pairs = pages.commands(PAGE, "--pictures pairs.png")[-1]
    assert leaks(tmp_path, 1, *pairs)
    assert (tmp_path / "pairs.png").exists()
    assert leaks(tmp_path, 0, *grouped) == leaks(tmp_path, 0, *grouped, "data.folds=3") == []
    splits = trained(tmp_path, "python", "train.py", *grouped[3:])
    plants = [{name.split("_")[0] for name in names} for names in splits.values()]
    assert len(set.union(*plants)) == sum(map(len, plants)) == 2 * NUM_PLANTS
    splits = trained(tmp_path, *newest, grouped[-1])
    days = {split: [int(Path(name).name[1:3]) for name in names] for split, names in splits.items()}
    assert sorted({*days["test"]}) == list(range(NEW, NUM_PLANTS))
    assert max(days["train"] + days["val"]) < NEW

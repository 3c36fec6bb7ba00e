"""Tests on the newest images, by EXIF data and by a column of a list."""

import re
import struct
from pathlib import Path
from typing import Any

import pytest
from PIL import ExifTags, Image

from lockstep.data.images.image_table import list_classes
from lockstep.data.sources.folders import complete_splits
from lockstep.data.sources.lists import read_list
from lockstep.data.splits import Fold
from tests.support.image_files import write_image, write_list

DAYS = [*(f"2026-05-{day:02}" for day in range(1, 16)), "2026-06-01", "2026-06-02", "2026-06-03"]  # of each class


def write_photographs(root: Path) -> None:
    for name in ("cat", "dog"):
        for number, day in enumerate(DAYS):
            path = write_image(root / name / f"{number:02}.jpg", seed=number)
            exif = Image.Exif()
            # other cameras, other separators
            exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = f"{day.replace('-', ':')} 23:59:59"
            exif[ExifTags.Base.DateTime] = "2026:12:24 00:00:00"  # edited later
            Image.open(path).save(path, exif=exif)


def cut(root: Path, test_after: str = "2026-06-01", group: Any = None, **more: Any) -> dict[str, list[str]]:
    table = complete_splits(list_classes(str(root), group), 0.1, 0.1, 0, test_after, **more)
    return {name: [table.names[row] for row in rows] for name, rows in table.splits.items()}


def test_the_newest_photographs_are_the_test_and_the_older_ones_are_cut(tmp_path: Path) -> None:
    write_photographs(tmp_path)
    found = cut(tmp_path)
    assert found["test"] == [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in (15, 16, 17)]
    assert [len(found[name]) for name in ("train", "val")] == [26, 4]
    assert cut(tmp_path, "2026-06-03")["test"] == ["cat/17.jpg", "dog/17.jpg"]


def test_a_group_with_a_new_image_is_tested_as_a_whole(tmp_path: Path) -> None:
    write_photographs(tmp_path)
    found = cut(tmp_path, "2026-06-03", r"(\d)\.jpg")
    assert found["test"] == [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in ("07", "17")]


def test_known_images_and_groups_stay_when_newer_images_come(tmp_path: Path) -> None:
    write_photographs(tmp_path)
    before = {name: split for split, names in cut(tmp_path, "2026-05-15").items() for name in names}
    # 17 is the only new image of the group 7, which was trained on
    del before["cat/17.jpg"]
    before |= dict.fromkeys(("cat/07.jpg", "dog/07.jpg", "dog/17.jpg"), "train")
    found = cut(tmp_path, "2026-05-15", r"(\d)\.jpg", kept=before)
    after = {name: split for split, names in found.items() for name in names}
    assert after == {**before, "cat/17.jpg": "train"}


def test_a_list_has_a_column_of_days(tmp_path: Path) -> None:
    rows = [{"path": f"{number}.png", "label": number % 2, "day": day} for number, day in enumerate(DAYS)]
    for row in rows:
        write_image(tmp_path / str(row["path"]))
    file = str(write_list(tmp_path / "list.csv", rows))
    columns = ["path", ["label"], "classes", None, None, None, "day"]
    table = complete_splits(read_list(file, None, *columns), 0.1, 0.1, 0, "2026-06-02")
    assert [table.names[row] for row in table.splits["test"]] == ["16.png", "17.png"]
    write_list(tmp_path / "list.csv", [*rows[:-1], {**rows[-1], "day": "soon"}])
    with pytest.raises(ValueError, match=re.escape("data.test_after=2026-06-02: 17.png has no date, but 'soon'")):
        complete_splits(read_list(file, None, *columns), 0.1, 0.1, 0, "2026-06-02")


def test_dates_that_make_no_test_and_other_tests_are_refused(tmp_path: Path) -> None:
    write_photographs(tmp_path)
    with pytest.raises(ValueError, match="the images are of 2026-05-01 to 2026-06-03: choose a day between"):
        cut(tmp_path, "2026-06-04")
    with pytest.raises(ValueError, match=r"makes a test split, and so does data\.folds: use one of them"):
        cut(tmp_path, fold=Fold(0, 5))
    write_image(tmp_path / "cat" / "scan.png")
    with pytest.raises(ValueError, match=re.escape("data.test_after=2026-06-01: cat/scan.png has no date")):
        cut(tmp_path)
    size, head = 40_000, 54  # of a bitmap with too many pixels
    bitmap = struct.pack("<2sIHHI", b"BM", head, 0, 0, head) + struct.pack(
        "<IiiHHIIiiII", 40, size, size, 1, 24, *[0] * 6
    )
    (tmp_path / "cat" / "scan.png").write_bytes(bitmap)
    with pytest.raises(ValueError, match=re.escape("data.test_after=2026-06-01: cat/scan.png has no date")):
        cut(tmp_path)
    for name in ("train", "test"):
        write_photographs(tmp_path / "cut" / name)
    with pytest.raises(ValueError, match=r'and so does the split "test" of data\.root=.*: use one of them'):
        cut(tmp_path / "cut")

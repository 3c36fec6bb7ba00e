"""Tests on the newest images, by EXIF data and by a column of a list."""

from pathlib import Path
from typing import Any

import pytest
from PIL import ExifTags, Image

from lockstep.data.images.image_table import list_classes
from lockstep.data.sources.folders import complete_splits
from lockstep.data.sources.lists import read_list
from lockstep.data.splits import Fold
from tests.support.image_files import HEIC, write_image, write_list

# of each class
DAYS = [*(f"2026-05-{day:02}" for day in range(1, 16)), "2026-06-01", "2026-06-02", "2026-06-03"]


def write_photographs(root: Path) -> None:
    for name in ("cat", "dog"):
        for number, day in enumerate(DAYS):
            path = write_image(root / name / f"{number:02}.jpg", seed=number)
            exif = Image.Exif()
            # other cameras, other separators
            exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = (
                f"{day.replace('-', ':')} 23:59:59"
            )
            exif[ExifTags.Base.DateTime] = "2026:12:24 00:00:00"  # edited later
            Image.open(path).save(path, exif=exif)


def cut(
    root: Path, test_after: str = "2026-06-01", group: Any = None, **more: Any
) -> dict[str, list[str]]:
    table = complete_splits(list_classes(str(root), group), 0.1, 0.1, 0, test_after, **more)
    return {name: [table.names[row] for row in rows] for name, rows in table.splits.items()}


@pytest.mark.parametrize(
    ("test_after", "group", "tested", "sizes"),
    [
        ("2026-06-01", None, ("15", "16", "17"), [26, 4]),
        # a group with a new image is tested
        ("2026-06-03", r"(\d)\.jpg", ("07", "17"), [28, 4]),
    ],
    ids=["images", "groups"],
)
def test_newest_tested(
    tmp_path: Path, test_after: str, group: str | None, tested: tuple[str, ...], sizes: list[int]
) -> None:
    write_photographs(tmp_path)
    found = cut(tmp_path, test_after, group)
    assert found["test"] == [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in tested]
    assert [len(found[name]) for name in ("train", "val")] == sizes


def test_list_column(tmp_path: Path) -> None:
    rows = [
        {"path": f"{number}.png", "label": number % 2, "day": day}
        for number, day in enumerate(DAYS)
    ]
    for row in rows:
        write_image(tmp_path / str(row["path"]))
    file = str(write_list(tmp_path / "list.csv", rows))
    columns = ["path", ["label"], "classes", None, None, None, "day"]
    table = complete_splits(read_list(file, None, *columns), 0.1, 0.1, 0, "2026-06-02")
    assert [table.names[row] for row in table.splits["test"]] == ["16.png", "17.png"]
    write_list(tmp_path / "list.csv", [*rows[:-1], {**rows[-1], "day": "soon"}])
    with pytest.raises(ValueError, match=r"data\.test_after=2026-06-02: 17\.png .*'soon'"):
        complete_splits(read_list(file, None, *columns), 0.1, 0.1, 0, "2026-06-02")


@pytest.mark.parametrize(
    ("day", "files", "settings", "message"),
    [
        ("2026-06-04", {}, {}, "2026-05-01 to 2026-06-03"),
        ("2026-06-01", {}, {"fold": Fold(0, 5)}, r"data\.folds"),
        ("2026-06-01", {}, {"group": r"^(\w+)/"}, "every group has such an image"),
        (
            "2026-06-01",
            {"cat/scan.png": HEIC},
            {},
            r"data\.test_after=2026-06-01: cat/scan\.png has no date",
        ),
    ],
)
def test_date_refused(
    tmp_path: Path, day: str, files: dict[str, bytes], settings: dict[str, Any], message: str
) -> None:
    write_photographs(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        cut(tmp_path, day, **settings)


def test_date_with_test_split(tmp_path: Path) -> None:
    for name in ("train", "test"):
        write_photographs(tmp_path / name)
    with pytest.raises(ValueError, match=r'the split "test" of data\.root'):
        cut(tmp_path)

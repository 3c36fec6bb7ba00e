"""CSV lists give the pixels of a folder of the same files, and errors by file, row and column."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lockstep.data.sources.lists import image_list
from lockstep.data.splits import Splits, all_pixels
from tests.support.image_files import LIST, write_image, write_list, write_listed


def read(file: Path, **changes: Any) -> Splits:
    return image_list(file=str(file), **{**LIST, "root": None, "image_size": None, **changes})


def test_class_list(tmp_path: Path) -> None:
    file = write_listed(tmp_path)
    splits = read(file, split_column="split")
    assert splits.class_names == ("a", "b")
    assert [len(part) for part in splits.by_name.values()] == [12, 4, 4]
    for part, rests in zip(splits.by_name.values(), ((0, 1, 2), (3,), (4,)), strict=True):
        numbers = [int(name[-6:-4]) for name in part.names]
        assert numbers == [number for number in range(20) if number % 5 in rests]
        assert part.targets.tolist() == [number % 2 for number in numbers]
        for pixels, name in zip(all_pixels(part.pixels), part.names, strict=True):
            assert torch.equal(
                pixels, torch.from_numpy(np.array(Image.open(tmp_path / name))).permute(2, 0, 1)
            )


def test_label_and_number_columns(tmp_path: Path) -> None:
    file = write_listed(tmp_path)
    write_list(
        file,
        [{"path": f"deep er/bild ü {i:02d}.png", "wet": i % 2, "kg": i / 4} for i in range(20)],
    )
    numbers = read(file, target_columns=["kg", "wet"], targets="numbers")
    assert numbers.class_names == ("kg", "wet")
    for part in numbers.by_name.values():
        rows = torch.tensor([int(name[-6:-4]) for name in part.names])
        assert part.targets.dtype == torch.float32
        assert torch.equal(part.targets, torch.stack([rows / 4, rows % 2], 1))
    with pytest.raises(ValueError, match=r"row 3, column kg: '0\.25' is neither 0 nor 1"):
        read(file, target_columns=["kg", "wet"])


def test_missing_splits(tmp_path: Path) -> None:
    file = write_listed(tmp_path)
    rows = [
        {
            "path": f"deep er/bild ü {i:02d}.png",
            "label": i % 3,
            "split": "test" if i > 15 else "train",
        }
        for i in range(20)
    ]
    write_list(file, rows)
    splits = read(file, split_column="split")
    assert [int(name[-6:-4]) for name in splits.test.names] == [16, 17, 18, 19]


@pytest.mark.usefixtures("in_tmp_path")
def test_relative_and_absolute_paths(tmp_path: Path) -> None:
    file = write_listed(tmp_path / "images")
    expected = read(file, split_column="split")
    rows = list(csv.DictReader(file.read_text().splitlines()))
    absolute = [row | {"path": str(tmp_path / "images" / row["path"])} for row in rows]
    for place in (
        {"file": write_list(tmp_path / "absolute.csv", absolute)},
        {"file": write_list(tmp_path / "relative.csv", rows), "root": "images"},
    ):
        found = read(split_column="split", **place)
        assert found.statistics == expected.statistics
        assert torch.equal(all_pixels(found.test.pixels), all_pixels(expected.test.pixels))


PLAIN = "path,label,split\nx0.png,a,train\nx1.png,b,train\nx2.png,a,val\nx3.png,b,test\n"
BROKEN: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "column": (
        PLAIN.replace("label", "class"),
        {"path_column": "file"},
        [
            r"list\.csv has the columns path, class, split, but data\.path_column is 'file'; "
            r"data\.targ"
        ],
    ),
    "split": (
        PLAIN.replace("val", "valid"),
        {},
        [r"row 4, column split: 'valid' is not train, val or test"],
    ),
    "empty": (
        PLAIN.replace("x1.png", ""),
        {},
        [r"list\.csv, row 3, column path: the cell is empty, fill it in"],
    ),
    "missing": (
        PLAIN.replace("x1", "y1").replace("x3", "y3"),
        {},
        [
            r"row 3, column path: .*y1\.png does not exist\.$",
            r"row 5, column path: .*y3\.png does not exist\.$",
        ],
    ),
    "number": (
        PLAIN,
        {"targets": "numbers"},
        [
            rf"row {row}, column label: '\w' is not a finite number of float32"
            for row in range(2, 6)
        ],
    ),
    "class": (
        PLAIN.replace("x3.png,b", "x3.png,c"),
        {},
        [r"row 5, column label: no row for train has the class 'c'"],
    ),
    "blank class": (
        PLAIN.replace("x2.png,a", "x2.png, "),
        {},
        [r"row 4, column label: the cell is empty"],
    ),
    "NUL": (
        PLAIN.replace("x2.png,a", "x2.png,a\0"),
        {},
        [r"row 4, column label: the cell has a NUL byte"],
    ),
    "columns": (
        PLAIN.replace("split", "label"),
        {"split_column": None},
        [
            r"has the columns path, label, label, but data\.target_columns is 'label': .* "
            r"rename all but one"
        ],
    ),
    "one class": (
        PLAIN.replace(",b,", ",a,"),
        {},
        [r"list\.csv has one class only, a, in column label"],
    ),
    "cells": (
        PLAIN + "x4.png,a\n",
        {},
        [r"list\.csv, row 6 has 2 cells, but the first line has 3"],
    ),
    "rows": ("path,label,split\n", {}, [r"list\.csv has no rows"]),
    "empty file": ("", {}, [r"list\.csv has no rows"]),
    "tabs": (PLAIN.replace(",", "\t"), {}, [r"list\.csv has semicolons or tabs"]),
    "decimal commas": ("path;label\nx0.png;0,5\n", {}, [r"list\.csv has semicolons or tabs"]),
    "train": (
        PLAIN.replace("train", "val"),
        {},
        [r"list\.csv has no row for train in column split"],
    ),
    "lines": (
        'path,label,split,note\nx0.png,a,train,"two\nlines"\n\nx1.png,b,valid,\n',
        {},
        [r"list\.csv, row 5, column split: 'valid' is not train"],
    ),
    "infinite": (
        PLAIN.replace(",a,", ",1,").replace(",b,", ",inf,"),
        {"targets": "numbers"},
        [
            r"row 3, column label: 'inf' is not a finite number of float32",
            r"row 5, column label: 'inf' is not a finite number of float32",
        ],
    ),
    "infinite in float32": (
        PLAIN.replace(",a,", ",1,").replace(",b,", ",-1e39,"),
        {"targets": "numbers"},
        [rf"row {row}, column label: '-1e39' is not a finite number of float32" for row in (3, 5)],
    ),
    "infinite in one of two columns": (
        "path,label,split,length\nx0.png,1,train,2\nx1.png,1,val,1e39\n",
        {"targets": "numbers", "target_columns": ["label", "length"]},
        [r"list\.csv, row 3, column length: '1e39' is not a finite number of float32"],
    ),
    "many": (
        "path,label,split\n" + 12 * "x0.png,a,valid\n",
        {},
        [*(rf"row {row}, column split: 'valid'" for row in range(2, 12)), r"^\.\.\. and 2 more$"],
    ),
    "bytes": (
        "path,label,split\nx0.png,\udce4,train\n",
        {},
        [r"list\.csv cannot be read .*save it as CSV with"],
    ),
}


@pytest.mark.parametrize(("text", "changes", "lines"), BROKEN.values(), ids=BROKEN)
def test_bad_cells_refused(
    tmp_path: Path, text: str, changes: dict[str, Any], lines: list[str]
) -> None:
    for number in range(5):
        write_image(tmp_path / f"x{number}.png", seed=number)
    (tmp_path / "list.csv").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each line is looked at
        read(tmp_path / "list.csv", **{"split_column": "split", **changes})
    for line, pattern in zip(str(caught.value).splitlines(), lines, strict=True):
        assert re.search(pattern, line), line


def write_patients(folder: Path) -> Path:
    """Write a list of 40 images of 20 patients, two in a row."""
    rows = []
    for row in range(40):
        patient = f"p{row // 2:02}"
        path = write_image(folder / f"{patient}_{row}.png", seed=row)
        rows.append(
            {"path": path.name, "label": "ab"[row // 2 % 2], "number": row, "patient": patient}
        )
    return write_list(folder / "list.csv", rows)


def splits_of(splits: Splits, key: Callable[[str], str]) -> set[tuple[str, str]]:
    """Pairs of a key of an image and its split."""
    return {(key(name), split) for split, part in splits.by_name.items() for name in part.names}


@pytest.mark.parametrize("keys", [{"group_column": "patient"}, {"group": r"^(p\d+)_"}])
@pytest.mark.parametrize("targets", [{}, {"targets": "numbers", "target_columns": ["number"]}])
def test_group_in_one_split(tmp_path: Path, keys: dict[str, str], targets: dict[str, Any]) -> None:
    splits = read(write_patients(tmp_path), **keys, **targets)
    assert splits.train.groups == [name[:3] for name in splits.train.names]
    assert len(splits_of(splits, lambda name: name[:3])) == 20


@pytest.mark.parametrize("keys", [{}, {"group_column": "patient"}])
def test_duplicate_paths_same_split(tmp_path: Path, keys: dict[str, str]) -> None:
    rows = list(csv.DictReader(write_patients(tmp_path).read_text().splitlines()))
    again = [
        row | {"path": path}
        for row in rows
        for path in (f"./{row['path']}", str(tmp_path / row["path"]))
    ]
    splits = read(write_list(tmp_path / "twice.csv", rows + again), **keys)
    assert sum(map(len, splits.by_name.values())) == 120
    assert len(splits_of(splits, lambda name: Path(name).name)) == 40


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"group": "(p)", "group_column": "patient"},
            "data.group=.p. and data.group_column=patient",
        ),
        ({"group_column": "who"}, "data.group_column is 'who'"),
        ({"group": "(q)"}, "data.group=.q. .*40 of 40 images of data.file=.* p00_0.png"),
    ],
)
def test_group_refused(tmp_path: Path, keys: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(write_patients(tmp_path), **keys)


@pytest.mark.parametrize("path", ["p00_0.png", "./p00_0.png"])
def test_image_in_two_groups(tmp_path: Path, path: str) -> None:
    write_patients(tmp_path)
    rows = [
        {"path": "p00_0.png", "label": "a", "patient": "p0"},
        {"path": path, "label": "b", "patient": "p1"},
    ]
    with pytest.raises(ValueError, match="in the groups 'p0' and 'p1'"):
        read(write_list(tmp_path / "twice.csv", rows), group_column="patient")

"""CSV lists of images: the pixels of a folder of the same files, and errors by file, row and column."""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lockstep.config.checks import validation
from lockstep.config.checks.data_presence import check
from lockstep.config.composing.compose import compose_config
from lockstep.config.errors import ConfigError
from lockstep.data.images.image_files import ImageFiles
from lockstep.data.images.ragged_table import Rows
from lockstep.data.sources.lists import image_list, read_list
from lockstep.data.splits import Splits, whole
from lockstep.runs.files import csv_text
from tests.support.image_files import SETTINGS, write_image, write_list, write_listed

LIST: dict[str, Any] = {
    **SETTINGS,
    **{"root": None, "path_column": "path", "target_columns": ["label"], "targets": "classes", "split_column": None},
    "group_column": None,
    "date_column": None,
    "image_size": None,
}


def read(file: Path, **changes: Any) -> Splits:
    return image_list(file=str(file), **LIST | changes)


def test_a_list_gives_the_pixels_targets_and_splits_of_its_rows(tmp_path: Path) -> None:
    file = write_listed(tmp_path)
    splits = read(file, split_column="split")
    assert splits.class_names == ("a", "b")
    assert [len(part) for part in splits.parts.values()] == [12, 4, 4]
    for part, rests in zip(splits.parts.values(), ((0, 1, 2), (3,), (4,)), strict=True):
        numbers = [int(name[-6:-4]) for name in part.names]
        assert numbers == [number for number in range(20) if number % 5 in rests]
        assert part.targets.tolist() == [number % 2 for number in numbers]
        for pixels, name in zip(whole(part.pixels), part.names, strict=True):
            assert torch.equal(pixels, torch.from_numpy(np.array(Image.open(tmp_path / name))).permute(2, 0, 1))


def test_names_that_were_marked_as_texts_for_a_spreadsheet_are_found(tmp_path: Path) -> None:
    texts = ["=1+1", "'=1+1", "-a", "@b", "'c"]
    rows = [[f"{text}{i}.png", text] for text in texts for i in range(5)]
    for name, _ in rows:
        write_image(tmp_path / name)
    file = tmp_path / "list.csv"
    file.write_text(csv_text([["path", "label"], *rows]))
    cells = [row[1] for row in csv.reader(file.read_text().splitlines())]
    assert cells[1::5] == ["'=1+1", "''=1+1", "'-a", "'@b", "'c"]
    splits = read(file, image_size=8, val_fraction=0.2, test_fraction=0.2)
    assert set(splits.class_names) == set(texts)


def test_blanks_at_the_ends_of_classes_are_ignored_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        write_image(tmp_path / f"x{number}.png", seed=number)
    file = tmp_path / "list.csv"
    file.write_text("path,label,split\nx0.png,cat,train\nx1.png, dog,train\nx2.png,cat ,val\nx3.png,dog,test\n")
    splits = read(file, split_column="split")
    assert splits.class_names == ("cat", "dog")
    assert [part.targets.tolist() for part in splits.parts.values()] == [[0, 1], [0], [1]]
    names = "' dog', 'cat '\n"
    line = f"column label: blanks at the ends of class names, and those of no width, are ignored: {names}"
    read(file, split_column="split")
    assert capsys.readouterr().out.count(f"data.file={file}, {line}") == 1


def test_several_columns_are_labels_that_hold_or_not_and_numbers_stay(tmp_path: Path) -> None:
    file = write_listed(tmp_path)
    write_list(file, [{"path": f"deep er/bild ü {i:02d}.png", "wet": i % 2, "kg": i / 4} for i in range(20)])
    numbers = read(file, target_columns=["kg", "wet"], targets="numbers")
    assert numbers.class_names == ("kg", "wet")
    for part in numbers.parts.values():
        rows = torch.tensor([int(name[-6:-4]) for name in part.names])
        assert part.targets.dtype == torch.float32
        assert torch.equal(part.targets, torch.stack([rows / 4, rows % 2], 1))
    with pytest.raises(ValueError, match=r"row 3, column kg: '0\.25' is neither 0 nor 1"):
        read(file, target_columns=["kg", "wet"])
    labels = read(file, target_columns=["wet", "wet"])
    assert labels.train.targets.shape == (len(labels.train), 2)


def test_splits_without_rows_are_cut_off_train(tmp_path: Path) -> None:
    file = write_listed(tmp_path)
    splits = read(file)
    assert all({0, 1} == set(part.targets.tolist()) for part in splits.parts.values())
    assert len({name for part in splits.parts.values() for name in part.names}) == 20
    rows = [
        {"path": f"deep er/bild ü {i:02d}.png", "label": i % 3, "split": "test" if i > 15 else "train"}
        for i in range(20)
    ]
    write_list(file, rows)
    splits = read(file, split_column="split")
    assert all({0, 1, 2} == set(part.targets.tolist()) for part in (splits.train, splits.val))
    assert [int(name[-6:-4]) for name in splits.test.names] == [16, 17, 18, 19]
    assert splits.class_names == ("0", "1", "2")
    with pytest.raises(ValueError, match=r'list\.csv has no split "val" and data\.val_fraction=0: add images of it'):
        read(file, split_column="split", val_fraction=0)


@pytest.mark.parametrize(("memory", "cache", "kind"), [("stream", None, ImageFiles), ("auto", "cache", Rows)])
def test_the_pixels_are_the_same_wherever_they_are_and_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str, cache: str | None, kind: type
) -> None:
    expected = read(write_listed(tmp_path / "images"), split_column="split")
    rows = [
        {
            "path": tmp_path / "images" / f"deep er/bild ü {i:02d}.png",
            "label": "ab"[i % 2],
            "split": ("train", "train", "train", "val", "test")[i % 5],
        }
        for i in range(20)
    ]
    elsewhere = write_list(tmp_path / "elsewhere.csv", rows)
    monkeypatch.chdir(tmp_path)
    places = ({"file": tmp_path / "images" / "list.csv"}, {"file": elsewhere}, {"file": elsewhere, "root": "images"})
    for place in places:
        found = read(memory=memory, cache=cache, split_column="split", **place)
        assert found.statistics == expected.statistics
        for part, other in zip(found.parts.values(), expected.parts.values(), strict=True):
            assert isinstance(part.pixels, kind)
            assert torch.equal(whole(part.pixels), whole(other.pixels))
            assert torch.equal(part.targets, other.targets)


def test_a_cache_is_made_again_when_an_image_changes_and_is_that_of_one_list(tmp_path: Path) -> None:
    file = write_listed(tmp_path / "images")
    before = read(file, cache=str(tmp_path / "cache"))
    write_image(tmp_path / "images" / before.train.names[0], seed=99)
    after = read(file, cache=str(tmp_path / "cache"))
    assert (whole(before.train.pixels) != whole(after.train.pixels)).flatten(1).any(1).tolist() == [True] + 11 * [False]
    other = tmp_path / "images" / "other.csv"
    other.write_text(file.read_text())
    read(other, cache=str(tmp_path / "cache"))
    assert len([path for path in (tmp_path / "cache").iterdir() if any(path.glob("*.rows"))]) == 2


PLAIN = "path,label,split\nx0.png,a,train\nx1.png,b,train\nx2.png,a,val\nx3.png,b,test\n"
BROKEN: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "column": (
        PLAIN.replace("label", "class"),
        {"path_column": "file"},
        [r"list\.csv has the columns path, class, split, but data\.path_column is 'file'; data\.targ"],
    ),
    "split": (
        PLAIN.replace("val", "valid"),
        {},
        [r"row 4, column split: 'valid' is not train, val or test"],
    ),
    "empty": (PLAIN.replace("x1.png", ""), {}, [r"list\.csv, row 3, column path: the cell is empty, fill it in"]),
    "missing": (
        PLAIN.replace("x1", "y1").replace("x3", "y3"),
        {},
        [r"row 3, column path: .*y1\.png does not exist\.$", r"row 5, column path: .*y3\.png does not exist\.$"],
    ),
    "number": (
        PLAIN,
        {"targets": "numbers"},
        [rf"row {row}, column label: '\w' is not a finite number of float32" for row in range(2, 6)],
    ),
    "class": (PLAIN.replace("x3.png,b", "x3.png,c"), {}, [r"row 5, column label: no row for train has the class 'c'"]),
    "blank class": (PLAIN.replace("x2.png,a", "x2.png, "), {}, [r"row 4, column label: the cell is empty"]),
    "NUL": (PLAIN.replace("x2.png,a", "x2.png,a\0"), {}, [r"row 4, column label: the cell has a NUL byte"]),
    "columns": (
        PLAIN.replace("split", "label"),
        {"split_column": None},
        [r"has the columns path, label, label, but data\.target_columns is 'label': .* rename all but one"],
    ),
    "one class": (PLAIN.replace(",b,", ",a,"), {}, [r"list\.csv has one class only, a, in column label"]),
    "cells": (PLAIN + "x4.png,a\n", {}, [r"list\.csv, row 6 has 2 cells, but the first line has 3"]),
    "rows": ("path,label,split\n", {}, [r"list\.csv has no rows"]),
    "train": (PLAIN.replace("train", "val"), {}, [r"list\.csv has no row for train in column split"]),
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


@pytest.mark.parametrize("name", BROKEN)
def test_cells_that_cannot_be_used_are_named_by_file_row_and_column(tmp_path: Path, name: str) -> None:
    for number in range(5):
        write_image(tmp_path / f"x{number}.png", seed=number)
    text, changes, lines = BROKEN[name]
    (tmp_path / "list.csv").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each line is looked at
        read(tmp_path / "list.csv", **{"split_column": "split", **changes})
    found = str(caught.value).splitlines()
    assert len(found) == len(lines)
    for line, pattern in zip(found, lines, strict=True):
        assert re.search(pattern, line), line


def errors(*texts: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check(validation.check_config(compose_config(["data=list", *texts])).data)
    return str(caught.value).splitlines()


def test_a_list_that_is_missing_or_cannot_be_read_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "data.file=list.csv does not exist" in errors("data.file=list.csv")[0]
    write_listed(tmp_path)
    assert "data.root=nowhere does not exist" in errors("data.file=list.csv", "data.root=nowhere")[0]
    Path("list.parquet").touch()
    (line,) = errors("data.file=list.parquet")
    assert "data.file=list.parquet is not a .csv file" in line
    assert "to_csv" in line


def write_patients(folder: Path) -> Path:
    """Write a list of 40 images of 20 patients, two in a row."""
    patients = [f"p{row // 2:02}" for row in range(40)]
    names = [write_image(folder / f"{patient}_{row}.png", seed=row).name for row, patient in enumerate(patients)]
    rows = [
        {"path": name, "label": "ab"[row // 2 % 2], "number": row, "patient": patients[row]}
        for row, name in enumerate(names)
    ]
    return write_list(folder / "list.csv", rows)


@pytest.mark.parametrize("keys", [{"group_column": "patient"}, {"group": r"^(p\d+)_"}])
@pytest.mark.parametrize("targets", [["label"], ["number"]])
def test_rows_of_a_group_are_in_one_split(tmp_path: Path, keys: dict[str, str], targets: list[str]) -> None:
    file = write_patients(tmp_path)
    splits = read(
        file, **keys, **({} if targets == ["label"] else {"targets": "numbers", "target_columns": ["number"]})
    )
    found: dict[str, set[str]] = {}
    for split, part in splits.parts.items():
        assert part.groups == [name[:3] for name in part.names]
        for group in part.groups or ():
            found.setdefault(group, set()).add(split)
    assert len(found) == 20
    assert all(len(of_group) == 1 for of_group in found.values())


@pytest.mark.parametrize("keys", [{"group_column": "patient"}, {"group": r"^([^_]+)_"}])
def test_blanks_at_the_ends_of_groups_are_ignored_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: dict[str, str]
) -> None:
    expected = read(write_patients(tmp_path), **keys)
    rows = list(csv.DictReader((tmp_path / "list.csv").read_text().splitlines()))
    for row in rows[1::2]:
        path, row["patient"] = tmp_path / row["path"], f"{row['patient']} "
        row["path"] = path.rename(path.with_name(path.name.replace("_", " _"))).name
    splits = read(write_list(tmp_path / "blanks.csv", rows), **keys)
    assert [part.groups for part in splits.parts.values()] == [part.groups for part in expected.parts.values()]
    assert "are ignored: 'p00 ', 'p01 ', 'p02 ' and 17 more\n" in capsys.readouterr().out


@pytest.mark.parametrize("keys", [{}, {"group_column": "patient"}])
def test_one_file_under_two_paths_is_in_one_split(tmp_path: Path, keys: dict[str, str]) -> None:
    rows = list(csv.DictReader(write_patients(tmp_path).read_text().splitlines()))
    again = [row | {"path": path} for row in rows for path in (f"./{row['path']}", str(tmp_path / row["path"]))]
    splits = read(write_list(tmp_path / "twice.csv", rows + again), **keys)
    split_of: dict[str, set[str]] = {}
    for split, part in splits.parts.items():
        for name in part.names:
            split_of.setdefault(Path(name).name, set()).add(split)
    assert sum(map(len, splits.parts.values())) == 120
    assert all(len(found) == 1 for found in split_of.values())


def test_images_of_another_list_may_have_no_group(tmp_path: Path) -> None:
    write_patients(tmp_path)
    names = {"p00_0.png": "a", "p01_2.png": "b", "./p01_2.png": "b"}
    rows = [{"path": path, "label": label} for path, label in names.items()]
    columns: Any = "path", ["label"], "classes", None, "(p00)_", None, None
    table = read_list(str(write_list(tmp_path / "other.csv", rows)), None, *columns, is_other=True)
    assert table.groups == ["p00", "./p01_2.png", "./p01_2.png"]


def test_groups_of_a_list_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    file = write_patients(tmp_path)
    for keys, message in (
        (
            {"group": "(p)", "group_column": "patient"},
            "data.group=.p. and data.group_column=patient are both set: set one",
        ),
        ({"group_column": "who"}, "but data.group_column is 'who': correct the name"),
        (
            {"group": "(q)"},
            "data.group=.q. finds no group for 40 of 40 images of data.file=.*, such as p00_0.png: correct",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            read(file, **keys)
    rows = [{"path": "p00_0.png", "label": label, "patient": patient} for label, patient in (("a", "p0"), ("b", "p1"))]
    file = write_list(tmp_path / "twice.csv", rows)
    problem = r"p00_0\.png and (\./)?p00_0\.png are one image, but in the groups 'p0' and 'p1'"
    with pytest.raises(ValueError, match=problem):
        read(file, group_column="patient")
    rows[1]["path"] = "./p00_0.png"
    with pytest.raises(ValueError, match=problem):
        read(write_list(tmp_path / "twice.csv", rows), group_column="patient")

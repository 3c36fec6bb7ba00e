"""`lockstep data check` counts and checks images; its exit code reports errors."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import near_duplicates
from lockstep.cli.check import check
from lockstep.config.composing import compose
from lockstep.data.duplicates import find_duplicates
from lockstep.data.inspection import inspect
from lockstep.runs.folder import EXIT_FAILED
from tests.support.image_files import read, write_image, write_list, write_listed


@pytest.fixture(autouse=True)
def _a_place_without_gpus(in_tmp_path: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.cli.data_report.num_visible_gpus", lambda: 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folders of 12, 4 and 4 images of two classes, all different, one of them large."""
    for number, (split, count) in enumerate({"train": 6, "val": 2, "test": 2}.items()):
        for label, name in enumerate(("fox", "hen")):
            for i in range(count):
                write_image(
                    tmp_path / "images" / split / name / f"{i}.png",
                    seed=100 * number + 10 * label + i,
                )
    write_image(tmp_path / "images" / "train" / "fox" / "0.png", seed=99, height=40, width=30)
    return tmp_path / "images"


FOLDER = ("data=image_folder", "data.root=images", "data.image_size=11", "global_batch_size=5")


def facts_of(capsys: pytest.CaptureFixture[str], *overrides: str, code: int = 0) -> dict[str, Any]:
    """What the check prints as JSON."""
    assert check(["strategy=cpu", *overrides], compose.DEFAULT, is_json=True) == code
    out = capsys.readouterr().out  # The first lines are the progress.
    return json.loads(out[out.index("{") :])


def duplicates_of(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    """The kind and the names of the duplicates, in a fixed order."""
    found = []
    for each in facts["duplicates"]:
        found.append((each["kind"], *(image["name"] for image in each["images"])))
    return sorted(found)


def test_valid_folder(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = facts_of(capsys, *FOLDER)
    assert facts["splits"]["train"] == {"images": 12, "classes": {"fox": 6, "hen": 6}, "groups": 0}
    assert facts["duplicates"] == []
    assert not Path("data").exists()  # nothing is decoded for keeps


def test_broken_and_duplicate_files(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "train" / "hen" / "1.png").write_bytes(b"no image")
    (root / "train" / "hen" / "2.png").write_bytes(b"no image")  # the same bytes, and no duplicates
    Image.new("RGB", (40_000, 1)).save(root / "val" / "hen" / "wide.png")
    shutil.copy(root / "train" / "fox" / "3.png", root / "test" / "hen" / "copy.png")
    with Image.open(root / "val" / "fox" / "1.png") as image:  # equal once decoded
        image.save(root / "test" / "fox" / "copy.bmp")
    shutil.copy(root / "train" / "fox" / "4.png", root / "train" / "fox" / "5.png")
    facts = facts_of(capsys, *FOLDER, "data.image_size=224", code=EXIT_FAILED)
    names = [re.findall(r"\w+/\w+/\w+\.png", line)[0] for line in facts["broken"]]
    assert names == ["train/hen/1.png", "train/hen/2.png", "val/hen/wide.png"]
    assert duplicates_of(facts) == sorted(
        [
            ("leak", "val/fox/1.png", "test/fox/copy.bmp"),
            ("leak and contradiction", "train/fox/3.png", "test/hen/copy.png"),
            ("duplicate", "train/fox/4.png", "train/fox/5.png"),
        ]
    )


LIST = ("data=list", "data.file=list.csv", "data.split_column=split", "data.image_size=8")


@pytest.mark.parametrize(
    ("options", "row", "kinds", "code"),
    [
        (LIST, (0, "a", "0", "test"), ["leak"], EXIT_FAILED),
        (LIST, (1, "a", "1", "train"), ["contradiction"], EXIT_FAILED),
        # numbers may differ for one image
        (
            (*LIST, "data.target_columns=[kg]", "data.targets=numbers"),
            (1, "b", "7", "train"),
            ["duplicate"],
            0,
        ),
    ],
)
def test_file_listed_twice(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: Any,
    row: Any,
    kinds: list[str],
    code: int,
) -> None:
    file = write_listed(tmp_path)
    cells = [
        (number, "ab"[number % 2], str(number), ("train", "val", "test")[number // 6])
        for number in range(18)
    ]
    listed = [(f"deep er/bild ü {number:02d}.png", *others) for number, *others in (*cells, row)]
    write_list(
        file, [dict(zip(("path", "label", "kg", "split"), each, strict=True)) for each in listed]
    )
    facts = facts_of(capsys, *options, code=code)
    assert [each["kind"] for each in facts["duplicates"]] == kinds
    assert [image["name"] for image in facts["duplicates"][0]["images"]] == [listed[-1][0]] * 2


def test_duplicates_across_folds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label, name in enumerate(("fox", "hen")):
        for number in range(9):
            write_image(tmp_path / "images" / name / f"{number}.png", seed=10 * label + number)
    for number in range(9):
        shutil.copy(
            tmp_path / "images" / "fox" / f"{number}.png",
            tmp_path / "images" / "fox" / f"{number}c.png",
        )
    options = [(*FOLDER, "data.folds=3", f"data.fold={fold}") for fold in range(3)]
    found = [facts_of(capsys, *each, code=EXIT_FAILED) for each in options]
    leaks = [
        {copy[1].replace("c.", ".") for copy in duplicates_of(facts) if copy[0] == "leak"}
        for facts in found
    ]
    assert set() < leaks[0] == leaks[1] == leaks[2]  # whichever fold is tested


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Tiles of the sample photographs in three splits, with near-duplicates of some."""
    root, draws = tmp_path / "photographs", np.random.default_rng(0)
    for number, image in enumerate(near_duplicates.tiles()[4:64:2]):
        split, name = ("train", "val", "test")[number // 10], ("fox", "hen")[number % 2]
        path = root / split / name / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    for source, edit, copy in (
        ("train/fox/06.png", "half the size", "test/fox/half.png"),
        ("train/hen/07.png", "a crop of 90 % of the sides", "val/fox/crop.png"),
        ("train/hen/09.png", "darker by 40 %", "train/fox/dark.png"),
        ("test/fox/22.png", "twice the size", "test/fox/thin.png"),
    ):
        near_duplicates.EDITS[edit](Image.open(root / source), draws).save(root / copy)
    return root


PHOTOGRAPHS = ("data=image_folder", "data.root=photographs", "data.image_size=16")


def test_near_duplicates(photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(photographs / "val" / "fox" / "10.png", photographs / "val" / "fox" / "twice.png")
    facts = facts_of(capsys, *PHOTOGRAPHS, code=EXIT_FAILED)
    assert duplicates_of(facts) == sorted(
        [
            ("contradiction", "train/fox/dark.png", "train/hen/09.png"),
            ("leak", "train/fox/06.png", "test/fox/half.png"),
            ("leak and contradiction", "train/hen/07.png", "val/fox/crop.png"),
            ("near-duplicate", "test/fox/22.png", "test/fox/thin.png"),
            ("duplicate", "val/fox/10.png", "val/fox/twice.png"),
        ]
    )
    found = facts_of(capsys, *PHOTOGRAPHS, "data.near_duplicates=0")
    assert duplicates_of(found) == [("duplicate", "val/fox/10.png", "val/fox/twice.png")]


def test_near_duplicates_within_group(photographs: Path) -> None:
    splits = read(photographs, image_size=16, memory="stream")
    burst = ("test/fox/22.png", "test/fox/thin.png", "train/fox/06.png", "test/fox/half.png")
    parts = {
        split: replace(images, groups=["burst" if name in burst else name for name in images.names])
        for split, images in splits.by_name.items()
    }
    inspection = inspect(replace(splits, **parts), lambda *_: None, is_near=True)
    duplicates = find_duplicates(inspection, (), 0.1, lambda *_: None)
    found = {each.kind: [image.name for image in each.images] for each in duplicates}
    assert "near-duplicate" not in found
    assert found["leak"] == ["train/fox/06.png", "test/fox/half.png"]  # a group in two splits leaks


def test_targets_out_of_range(capsys: pytest.CaptureFixture[str]) -> None:
    facts = facts_of(capsys, "data._target_=tests.support.sources.unlabeled", code=EXIT_FAILED)
    train, test = facts["wrong_targets"]
    assert "train has -1 in digits/" in train
    assert "test has 10 in digits/" in test


def test_broken_dataset_sample(capsys: pytest.CaptureFixture[str]) -> None:
    train = "data.train={_target_: tests.support.sources.Turned, count: 20, broken: 4}"
    dataset = ("data=dataset", "data.mean=[0.5]", "data.std=[0.5]", train)
    (line,) = facts_of(capsys, *dataset, code=EXIT_FAILED)["broken"]
    assert line.startswith("data.train: sample 4 cannot be made (OSError: half a file, in ")


@pytest.mark.parametrize("command", ["check", "fetch"])
def test_folder_argument(root: Path, run_lockstep: Callable[..., int], command: str) -> None:
    for words in ([root.name, "data.image_size=11"], ["data.image_size=11", root.name]):
        assert run_lockstep("data", command, *words, "strategy=cpu") == 0

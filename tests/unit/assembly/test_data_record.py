"""The record of a run's images is equal for the same data, and names an example of each change."""

import copy
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.assembly import data_record
from lockstep.data.images import image_table
from lockstep.data.splits import Images, Splits
from lockstep.runs.folder import RunFolder


def images(names: list[str], targets: Any) -> Images:
    return Images(torch.zeros(len(names), 1, 4, 4, dtype=torch.uint8), torch.tensor(targets), names)


SPLITS = Splits(
    train=images(["cat/0.png", "dog/0.png", "cat/1.png"], [0, 1, 0]),
    val=images(["cat/2.png", "dog/2.png"], [0, 1]),
    test=images(["cat/3.png", "dog/\udcff.png"], [0, 1]),
    class_names=("cat", "dog"),
)
RECORD = data_record.record_of(SPLITS)
NUMBERS = data_record.record_of(
    Splits(
        images(["a", "a", "b"], [[0.5], [0.25], [1.0]]),
        images(["c"], [[0.0]]),
        images(["d"], [[0.0]]),
        ("weight",),
    )
)


def changed(path: list[Any], value: Any, before: dict[str, Any] = RECORD) -> dict[str, Any]:
    record = copy.deepcopy(before)
    part: Any = record
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return record


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (
            RECORD,
            changed(["class_names"], ["cat", "wolf"]),
            "classes in their order: dog is now wolf",
        ),
        (
            RECORD,
            changed(["class_names"], ["cat", "dog", "emu"]),
            "classes in their order: 2 classes, now 3",
        ),
        (
            RECORD,
            changed(["class_names"], ["dog", "cat"]),
            "classes in their order: cat is now dog, dog is now cat",
        ),
        (
            RECORD,
            changed(["val"], {"names": ["cat/2.png"], "targets": [0]}),
            "1 image removed, such as dog/2.png",
        ),
        (
            RECORD,
            changed(
                ["val"], {"names": ["cat/2.png", "dog/2.png", "a", "b"], "targets": [0, 1, 0, 0]}
            ),
            "2 images added, such as a",
        ),
        (
            RECORD,
            changed(["test", "targets", 0], 1),
            "1 image with another target, such as cat/3.png",
        ),
        (
            RECORD,
            {**RECORD, "val": RECORD["test"], "test": RECORD["val"]},
            "4 images moved to another split, such as cat/2.png",
        ),
        (
            RECORD,
            changed(
                ["train"], {"names": ["cat/1.png", "dog/0.png", "cat/0.png"], "targets": [0, 1, 0]}
            ),
            "the order of its images, or how often one is listed",
        ),
        (
            NUMBERS,
            changed(["train"], {"names": ["a", "b"], "targets": [[0.25], [1.0]]}, NUMBERS),
            "the order of its images, or how often one is listed",
        ),
        (
            NUMBERS,
            changed(["train", "targets", 2], [2.0], NUMBERS),
            "1 image with another target, such as b",
        ),
        (  # of a Dataset, whose samples contain their targets
            changed(["train"], {"names": ["a", "b"], "targets": []}, NUMBERS),
            changed(["train"], {"names": ["b"], "targets": []}, NUMBERS),
            "1 image removed, such as a",
        ),
    ],
)
def test_differences(before: dict[str, Any], now: dict[str, Any], expected: str) -> None:
    found = data_record.differences(before, now)
    assert found[0] == expected
    assert data_record.differences(now, now) == []


def test_groups(tmp_path: Path) -> None:
    def grouped(*groups: str) -> dict[str, Any]:
        return data_record.record_of(replace(SPLITS, train=replace(SPLITS.train, groups=groups)))

    before, now = grouped("a", "b", "a"), grouped("a", "b", "c")
    data_record._write(RunFolder(tmp_path), before)
    assert data_record.read(RunFolder(tmp_path)) == before
    assert data_record.differences(before, now) == ["1 image with another group, such as cat/1.png"]
    # an earlier version
    assert data_record.differences(RECORD, now) == data_record.differences(now, RECORD) == []


@pytest.mark.parametrize(
    "content",
    [
        *(
            b"",
            b"no gzip",
            b"\x1f\x8b\x08",
            gzip.compress(b"{}", mtime=0),
            gzip.compress(b"[1]", mtime=0),
        ),
        gzip.compress(
            json.dumps(RECORD | {"contents": {"sizes": [1], "hashes": {}}}).encode(), mtime=0
        ),
        gzip.compress(
            json.dumps(RECORD | {"contents": {"sizes": [], "hashes": []}}).encode(), mtime=0
        ),
        gzip.compress(json.dumps(RECORD | {"groups": {"val": ["a"]}}).encode(), mtime=0),
    ],
)
def test_damaged_record_refused(tmp_path: Any, content: bytes) -> None:
    run = RunFolder(tmp_path)
    run.images.write_bytes(content)
    with pytest.raises(ValueError, match=r"images\.json\.gz cannot be read .*changed_data=accept"):
        data_record.read(run)


def written(root: Path, contents: dict[str, bytes]) -> Splits:
    """Images of the files `contents` below `root`, the last of them in the test split."""
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    table = image_table.list_classes(str(root))
    half, names = len(table.names) // 2, table.names
    parts = [images(part, [0] * len(part)) for part in (names[:half], names[half:-1], names[-1:])]
    return Splits(*parts, class_names=table.class_names, files=table)


def large(number: int) -> bytes:
    """Return bytes with the same size, start and end for every number.

    They imitate uncompressed files of images with a white border.
    """
    return bytes(8192) + number.to_bytes(2) * 8192 + bytes(8192)


NAMES = [f"{label}/{number}.bmp" for label in ("cat", "dog") for number in range(6)]


def test_other_contents(tmp_path: Path) -> None:
    contents = {name: large(number) for number, name in enumerate(NAMES)}
    before = data_record.record_of(written(tmp_path / "a", contents))
    again = data_record.record_of(written(tmp_path / "copy", contents))
    assert data_record.differences(before, again) == []
    same_size = data_record.record_of(written(tmp_path / "b", contents | {"cat/1.bmp": large(99)}))
    assert data_record.differences(before, same_size) == [
        "1 image with other contents, such as cat/1.bmp"
    ]
    del before["contents"]
    assert data_record.differences(before, same_size) == [], "an earlier version"


@pytest.mark.parametrize("is_recorded", [True, False])
def test_overlap(tmp_path: Path, is_recorded: bool, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder(tmp_path)
    contents = {name: large(number) for number, name in enumerate(NAMES)}
    record = data_record.record_of(written(tmp_path / "a", contents))
    if not is_recorded:
        del record["contents"]
    data_record._write(run, record)
    others: Any = written(
        tmp_path / "b", {name: large(number + 99) for number, name in enumerate(NAMES)}
    ).files
    one: Any = written(tmp_path / "c", contents | {"cat/1.bmp": large(99)}).files
    part: Any = written(tmp_path / "d", dict(list(contents.items())[2:])).files
    assert data_record.overlap(run, others) == (
        data_record.Overlap(6, [], sorted(NAMES)) if is_recorded else None
    )
    assert data_record.overlap(run, one) is None  # a change of the data of the run
    basis = "names and most contents" if is_recorded else "names (their contents were not recorded)"
    assert (
        f"is taken for the data of the run: its images have the same {basis}\n"
        in capsys.readouterr().out
    )
    assert data_record.overlap(run, part) == data_record.Overlap(6, NAMES[2:6], [])

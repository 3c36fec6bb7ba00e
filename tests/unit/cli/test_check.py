"""`lockstep data check` counts and checks images; its exit code reports errors."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import near_copies
from lockstep.assembly import listed_images
from lockstep.assembly.listed_images import files_of
from lockstep.cli import main
from lockstep.cli.check import check
from lockstep.config.composing import compose
from lockstep.data.copies import find_copies
from lockstep.data.images.preprocessing import VIEW_KEYS, View
from lockstep.data.inspection import inspect
from lockstep.runs.folder import EXIT_FAILED
from tests.support.composed import config_of
from tests.support.image_files import read, write_image, write_list, write_listed


@pytest.fixture(autouse=True)
def _a_place_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("lockstep.cli.check.num_visible_gpus", lambda: 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folders of 12, 4 and 4 images of two classes, all different, one of them large."""
    for number, (split, count) in enumerate({"train": 6, "val": 2, "test": 2}.items()):
        for label, name in enumerate(("fox", "hen")):
            for i in range(count):
                write_image(tmp_path / "images" / split / name / f"{i}.png", seed=100 * number + 10 * label + i)
    write_image(tmp_path / "images" / "train" / "fox" / "0.png", seed=99, height=40, width=30)
    return tmp_path / "images"


FOLDER = ("data=image_folder", "data.root=images", "data.image_size=11", "global_batch_size=5")


def facts_of(capsys: pytest.CaptureFixture[str], *overrides: str, code: int = 0) -> dict[str, Any]:
    """What the check prints as JSON."""
    assert check(["strategy=cpu", *overrides], compose.DEFAULT, is_json=True) == code
    return json.loads(capsys.readouterr().out)


def copies_of(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    """The kind and the names of the copies, in a fixed order."""
    found = []
    for each in facts["copies"]:
        found.append((each["kind"], *(image["name"] for image in each["images"])))
    return sorted(found)


def table_of(capsys: pytest.CaptureFixture[str], *overrides: str, code: int = 0) -> dict[str, str]:
    """The rows of the table by their names."""
    assert check(["strategy=cpu", *overrides], compose.DEFAULT) == code
    table = capsys.readouterr().out.split("─" * 78 + "\n")[1]
    return {name: text.strip() for name, _, text in (line.partition("  ") for line in table.splitlines())}


def test_folder_in_order(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table_of(capsys, *FOLDER)
    assert rows["train"] == "12 images (fox: 6, hen: 6)"
    assert rows["sizes"] == "height 10 to 40, median 10, width 12 to 30, median 12"
    assert rows["steps"] == "3 an epoch of 5 images each, 10 epochs"
    assert not Path("data").exists()  # nothing is decoded for keeps


def test_broken_files_and_equal_ones(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert copies_of(facts) == [
        ("leak", "val/fox/1.png", "test/fox/copy.bmp"),
        ("leak and contradiction", "train/fox/3.png", "test/hen/copy.png"),
        ("twice", "train/fox/4.png", "train/fox/5.png"),
    ]


MORE = "data.image_size=224"
TUNED = f"experiment=finetune, or {MORE}"
PHONE = "from 3,024 pixels to 32: add"


@pytest.mark.parametrize(
    ("sides", "overrides", "line"),
    [
        ([127, 127, 128], (), ""),
        ([127, 128, 128], (), f"from 128 pixels to 32: add {TUNED} model=resnet18_imagenet"),
        ([3024], ("model=resnet18_imagenet",), f"{PHONE} {TUNED}"),
        ([3024], ("model=torchvision", "model.name=vgg11", "model.pretrained=true"), f"{PHONE} {MORE}"),
        ([3024], ("module._target_=tests.support.own_modules.Plain",), f"{PHONE} {MORE}"),
        ([896], (MORE,), ""),
        ([3024], ("data.image_size=null",), ""),
        ([111], ("data.image_size=8",), ""),
        ([112], ("data.image_size=8",), f"from 112 pixels to 8: add {TUNED} model=resnet18_imagenet"),
        ([], (), ""),
    ],
)
def test_images_four_times_as_large_as_their_input_get_a_line_with_what_to_write(
    sides: list[int], overrides: tuple[str, ...], line: str
) -> None:
    config = config_of("data=image_folder", "data.root=images", *overrides)
    view = View.from_keys(*(config.data.arguments()[name] for name in VIEW_KEYS))
    assert listed_images.describe_shrinking(config, view, sides) == line


def test_sizes_of_a_check_and_of_a_new_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(50):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        write_image(path, seed=number, height=150, width=128 + 2 * number)
    options = ("data=image_folder", "data.root=images")
    line = f"from 150 pixels to 32: add {TUNED} model=resnet18_imagenet"
    images = read(tmp_path / "images", image_size=32, val_fraction=0.1, test_fraction=0.1)
    (tmp_path / "images" / images.train.names[0]).write_bytes(b"no image")
    assert listed_images.header_rows(config_of(*options), images)[1] == ("shrunk", line)
    assert listed_images.header_rows(config_of(*options), None)[1] == ("shrunk", "")


@pytest.mark.parametrize(
    ("override", "num_steps"), [("trainer.limit_train_batches=2", 2), ("trainer.overfit_batches=1", 1)]
)
def test_steps_of_limited_batches(
    root: Path, capsys: pytest.CaptureFixture[str], override: str, num_steps: int
) -> None:
    assert facts_of(capsys, *FOLDER, override)["steps"].startswith(f"{num_steps} an epoch of 5 images each")


def test_other_size_without_image_size(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = facts_of(capsys, *FOLDER, "data.image_size=null", code=EXIT_FAILED)
    assert len(facts["broken"]) == 19
    assert "set data.image_size" in facts["broken"][0]


LIST = ("data=list", "data.file=list.csv", "data.split_column=split", "data.image_size=8")
NUMBERS = ("data.target_columns=[kg]", "data.targets=numbers")


def test_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_listed(tmp_path)
    assert table_of(capsys, *LIST)["train"] == "12 images (a: 6, b: 6)"
    rows = table_of(capsys, *LIST, "data.target_columns=[kg,wet]", "data.targets=numbers")
    assert rows["test"] == "4 images (kg 1 to 4.75, mean 2.88; wet 0 to 1, mean 0.25)"


@pytest.mark.parametrize(
    ("options", "row", "kinds", "code"),
    [
        (LIST, (0, "a", "0", "test"), ["leak"], EXIT_FAILED),
        (LIST, (1, "a", "1", "train"), ["contradiction"], EXIT_FAILED),
        ((*LIST, *NUMBERS), (1, "b", "7", "train"), ["twice"], 0),  # numbers may differ for one image
    ],
)
def test_file_listed_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: Any, row: Any, kinds: list[str], code: int
) -> None:
    file = write_listed(tmp_path)
    cells = [(number, "ab"[number % 2], str(number), ("train", "val", "test")[number // 6]) for number in range(18)]
    listed = [(f"deep er/bild ü {number:02d}.png", *others) for number, *others in (*cells, row)]
    write_list(file, [dict(zip(("path", "label", "kg", "split"), each, strict=True)) for each in listed])
    facts = facts_of(capsys, *options, code=code)
    assert [each["kind"] for each in facts["copies"]] == kinds
    assert [image["name"] for image in facts["copies"][0]["images"]] == [listed[-1][0]] * 2


def test_equal_files_in_two_folds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label, name in enumerate(("fox", "hen")):
        for number in range(9):
            write_image(tmp_path / "images" / name / f"{number}.png", seed=10 * label + number)
    for number in range(9):
        shutil.copy(tmp_path / "images" / "fox" / f"{number}.png", tmp_path / "images" / "fox" / f"{number}c.png")
    options = [(*FOLDER, "data.folds=3", f"data.fold={fold}") for fold in range(3)]
    found = [facts_of(capsys, *each, code=EXIT_FAILED) for each in options]
    leaks = [{copy[1].replace("c.", ".") for copy in copies_of(facts) if copy[0] == "leak"} for facts in found]
    assert leaks[0] == leaks[1] == leaks[2]  # whichever fold is tested
    folds = {}
    for fold, each in enumerate(options):
        table = files_of(config_of(*each).data).table
        folds |= {table.names[row]: fold for row in table.splits["test"]}
    apart = {f"fox/{n}.png" for n in range(9) if folds[f"fox/{n}.png"] != folds[f"fox/{n}c.png"]}
    assert set() < apart <= leaks[0]


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Tiles of the sample photographs of scikit-learn in three splits, with near copies of some."""
    root, draws = tmp_path / "photographs", np.random.default_rng(0)
    for number, image in enumerate(near_copies.tiles()[4:64:2]):
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
        near_copies.EDITS[edit](Image.open(root / source), draws).save(root / copy)
    return root


PHOTOGRAPHS = ("data=image_folder", "data.root=photographs", "data.image_size=16")


def test_near_copies(photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(photographs / "val" / "fox" / "10.png", photographs / "val" / "fox" / "twice.png")
    facts = facts_of(capsys, *PHOTOGRAPHS, code=EXIT_FAILED)
    assert facts["splits"]["val"] == {"images": 12, "classes": {"fox": 7, "hen": 5}, "groups": 0}
    assert copies_of(facts) == [
        ("contradiction", "train/fox/dark.png", "train/hen/09.png"),
        ("leak", "train/fox/06.png", "test/fox/half.png"),
        ("leak and contradiction", "train/hen/07.png", "val/fox/crop.png"),
        ("near", "test/fox/22.png", "test/fox/thin.png"),
        ("twice", "val/fox/10.png", "val/fox/twice.png"),
    ]
    worst = [each["distance"] for each in facts["copies"][:3]]
    assert [each["kind"] for each in facts["copies"][3:]] == ["twice", "near"]  # after errors
    assert 0 < worst[0] <= worst[1] <= worst[2] <= 0.1
    found = facts_of(capsys, *PHOTOGRAPHS, "data.near_duplicates=0")
    assert copies_of(found) == [("twice", "val/fox/10.png", "val/fox/twice.png")]


def test_near_images_of_a_group_are_none(photographs: Path) -> None:
    splits = read(photographs, image_size=16, memory="stream")
    burst = ("test/fox/22.png", "test/fox/thin.png", "train/fox/06.png", "test/fox/half.png")
    parts = {
        split: replace(images, groups=["burst" if name in burst else name for name in images.names])
        for split, images in splits.parts.items()
    }
    inspection = inspect(replace(splits, **parts), lambda *_: None, is_near=True)
    copies = find_copies(inspection, (), 0.1, lambda *_: None)
    found = {each.kind: [image.name for image in each.images] for each in copies}
    assert "near" not in found
    assert found["leak"] == ["train/fox/06.png", "test/fox/half.png"]  # a group in two splits leaks


def test_pictures_of_pairs(photographs: Path) -> None:
    assert check(["strategy=cpu", *PHOTOGRAPHS], compose.DEFAULT, pictures="pairs.png") == EXIT_FAILED
    with Image.open("pairs.png") as sheet:
        sheet.load()
    for name in ("pairs.jpg", "pairs.png/2.png"):
        with pytest.raises(ValueError, match=f"--pictures {re.escape(name)}"):
            check(PHOTOGRAPHS, compose.DEFAULT, pictures=name)


def test_near_copies_in_two_folds(photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = photographs / "train"
    for number in range(5):
        with Image.open(folder / "fox" / f"{2 * number:02d}.png") as image:
            image.resize((120, 120)).save(folder / "fox" / f"large {number}.png")
    facts = facts_of(capsys, *PHOTOGRAPHS, f"data.root={folder}", "data.folds=3", code=EXIT_FAILED)
    assert [copy for copy in copies_of(facts) if copy[0] == "leak" and "large" in copy[1]]


def test_similar_names(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("p1", "P1", "1", "01")):
        write_image(root / "train" / "fox" / f"{name}_0.png", seed=600 + number)
    grouped = ("data.group='([^/]*?)(_0)?[.]png'", "data.shared_groups=accept")
    assert table_of(capsys, *FOLDER, *grouped)["similar"] == "groups '01' = '1'; 'P1' = 'p1': are they one group?"
    write_image(root / "train" / "Fox" / "0.png", seed=500)
    assert table_of(capsys, *FOLDER)["similar"] == "classes 'Fox' = 'fox': are they one class?"


def test_target_that_cannot_be_learned(capsys: pytest.CaptureFixture[str]) -> None:
    facts = facts_of(capsys, "data._target_=tests.support.sources.unlabelled", code=EXIT_FAILED)
    train, test = facts["wrong_targets"]
    assert "train has -1 in digits/" in train
    assert "test has 10 in digits/" in test


def test_tensors_of_two_images_differ(capsys: pytest.CaptureFixture[str]) -> None:
    facts = facts_of(capsys)
    assert (facts["splits"]["train"]["images"], facts["copies"]) == (1258, [])


DATASET = ("data=dataset", "data.mean=[0.5]", "data.std=[0.5]")


def test_broken_sample_of_a_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    train = "{_target_: tests.support.sources.Turned, count: 20, broken: 4}"
    (line,) = facts_of(capsys, *DATASET, f"data.train={train}", code=EXIT_FAILED)["broken"]
    assert line.startswith("data.train: sample 4 cannot be made (OSError: half a file, in ")


def test_equal_samples_of_two_datasets(capsys: pytest.CaptureFixture[str]) -> None:
    same = "{_target_: tests.support.sources.Still, count: 20}"
    facts = facts_of(capsys, *DATASET, f"data.train={same}", f"data.test={same}", code=EXIT_FAILED)
    assert [copy[0] for copy in copies_of(facts)] == ["leak"] * 20


@pytest.mark.parametrize("command", ["check", "fetch"])
def test_folder_is_enough(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    outputs = set()
    settings = ["data.image_size=11", "strategy=cpu"]
    for words in ([root.name, *settings], [*settings, root.name], [*FOLDER[:2], *settings]):
        monkeypatch.setattr(sys, "argv", ["lockstep", "data", command, *words])
        assert main._command() == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1

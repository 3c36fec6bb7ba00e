"""`lockstep data check` counts and checks images; its exit code reports errors."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import near_copies
from lockstep.assembly import listed_images
from lockstep.assembly.listed_images import files_of
from lockstep.cli import main
from lockstep.cli.check import check
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.composing.compose import compose_config
from lockstep.config.errors import ConfigError
from lockstep.config.schema.target_sections import Data
from lockstep.data.copies import find_copies
from lockstep.data.images.preprocessing import VIEW_KEYS, View
from lockstep.data.inspection import inspect
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED
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


def said(capsys: pytest.CaptureFixture[str], *overrides: str, code: int = 0) -> tuple[dict[str, str], list[str]]:
    """The rows of the table by their names, and the lines below it."""
    assert check(["strategy=cpu", *overrides], compose.DEFAULT) == code
    _, table, below = capsys.readouterr().out.split("─" * 78 + "\n")
    rows = [line.partition("  ") for line in table.splitlines()]
    return {name: text.strip() for name, _, text in rows}, below.splitlines()


def test_a_folder_in_order_is_counted_and_measured(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, lines = said(capsys, *FOLDER)
    assert rows["train"] == "12 images (fox: 6, hen: 6)"
    assert rows["val"] == rows["test"] == "4 images (fox: 2, hen: 2)"
    assert rows["sizes"] == "height 10 to 40, median 10, width 12 to 30, median 12"
    assert rows["training"] == "RGB at 11x11: short side 11, centre crop, bilinear; 19 smaller, to be enlarged"
    assert rows["memory"].startswith("8.4 KiB in data/cache/images-3x11x11-")
    assert rows["memory"].endswith("to be decoded once")
    assert rows["steps"] == "3 an epoch of 5 images each, 10 epochs"
    assert (rows["broken"], rows["leaks"], rows["duplicates"]) == ("none", "none", "none")
    assert lines == []
    assert not Path("data").exists()  # nothing is decoded for keeps


def test_broken_files_leaks_and_duplicates_are_named_each(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "train" / "hen" / "1.png").write_bytes(b"no image")
    (root / "train" / "hen" / "2.png").write_bytes(b"no image")  # the same bytes, and no duplicates: they are no images
    shutil.copy(root / "train" / "fox" / "3.png", root / "test" / "hen" / "copy.png")
    shutil.copy(root / "train" / "fox" / "4.png", root / "train" / "fox" / "5.png")
    rows, lines = said(capsys, *FOLDER, "data.memory=stream", code=EXIT_FAILED)
    assert rows["broken"] == "2 cannot be used"
    assert rows["leaks"] == "1 in more than one split"
    assert rows["contradictions"] == "1 in more than one class"
    assert rows["duplicates"] == "1 more than once in a split"
    assert rows["memory"].startswith("streamed: decoded when they are needed (data.memory=stream)")
    assert lines == [
        "broken: image images/train/hen/1.png cannot be read (not an image): replace or delete it.",
        "broken: image images/train/hen/2.png cannot be read (not an image): replace or delete it.",
        "leak and contradiction: train: train/fox/3.png (fox) = test: test/hen/copy.png (hen)",
        "twice: train: train/fox/4.png = train: train/fox/5.png",
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


def test_a_check_reads_all_sizes_and_a_new_run_those_of_some_headers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        write_image(path, seed=number, height=150, width=128 + 2 * number)
    options = ("data=image_folder", "data.root=images")
    line = f"from 150 pixels to 32: add {TUNED} model=resnet18_imagenet"
    assert said(capsys, *options)[0]["shrunk"] == line
    assert check([*options, "strategy=cpu"], compose.DEFAULT, is_json=True) == 0
    assert json.loads(capsys.readouterr().out)["shrunk"] == line
    config, images = config_of(*options), read(tmp_path / "images", image_size=32, val_fraction=0.1, test_fraction=0.1)
    (tmp_path / "images" / images.train.names[0]).write_bytes(b"no image")
    opened, open_image = list[str](), Image.open
    monkeypatch.setattr(Image, "open", lambda path, **formats: opened.append(path) or open_image(path, **formats))
    assert listed_images.header_rows(config, images)[1] == ("shrunk", line)
    assert 16 < len(opened) <= 32
    assert listed_images.header_rows(config, None)[1] == ("shrunk", "")


@pytest.mark.parametrize(
    ("override", "num_steps"), [("trainer.limit_train_batches=2", 2), ("trainer.overfit_batches=1", 1)]
)
def test_the_steps_are_those_of_the_batches_that_are_trained(
    root: Path, capsys: pytest.CaptureFixture[str], override: str, num_steps: int
) -> None:
    rows, _ = said(capsys, *FOLDER, override)
    assert rows["steps"].startswith(f"{num_steps} an epoch of 5 images each")


def test_an_image_of_another_size_is_broken_where_all_must_have_one(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, lines = said(capsys, *FOLDER, "data.image_size=null", code=EXIT_FAILED)
    assert rows["broken"] == "19 cannot be used"
    assert "fox/0.png has 40x30 (HxW) and images/train/fox/1.png 10x12: set data.image_size" in lines[0]
    (root / "train" / "fox" / "0.png").write_bytes(b"no image")
    shutil.copy(root / "train" / "fox" / "1.png", root / "val" / "hen" / "copy.png")
    rows, lines = said(capsys, *FOLDER, "data.image_size=null", code=EXIT_FAILED)
    assert (rows["broken"], rows["leaks"]) == ("1 cannot be used", "1 in more than one split")


def test_a_list_is_looked_at_by_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_listed(tmp_path)
    options = ("data=list", "data.file=list.csv", "data.split_column=split", "data.image_size=8")
    rows, _ = said(capsys, *options)
    assert rows["train"] == "12 images (a: 6, b: 6)"
    rows, _ = said(capsys, *options, "data.target_columns=[kg,wet]", "data.targets=numbers")
    assert rows["test"] == "4 images (kg 1 to 4.75, mean 2.88; wet 0 to 1, mean 0.25)"
    cells = [{"path": f"deep er/bild ü {i:02d}.png", "label": "ab"[i % 2]} for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 0)]
    write_list(file, [{**row, "split": ("train", "test")[number == 9]} for number, row in enumerate(cells)])
    rows, lines = said(capsys, *options, code=EXIT_FAILED)
    assert rows["leaks"] == "1 in more than one split"
    assert lines == ["leak: train: deep er/bild ü 00.png = test: deep er/bild ü 00.png"]


def test_files_that_are_equal_once_decoded_are_found(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Image.open(root / "train" / "fox" / "3.png") as image:
        image.save(root / "test" / "hen" / "copy.bmp")
    shutil.copy(root / "train" / "fox" / "4.png", root / "train" / "fox" / "5.png")
    rows, lines = said(capsys, *FOLDER, code=EXIT_FAILED)
    assert (rows["leaks"], rows["duplicates"]) == ("1 in more than one split", "1 more than once in a split")
    assert lines[0] == "leak and contradiction: train: train/fox/3.png (fox) = test: test/hen/copy.bmp (hen)"
    Image.new("RGB", (40_000, 1)).save(root / "val" / "hen" / "wide.png")
    rows, lines = said(capsys, *FOLDER, "data.image_size=224", code=EXIT_FAILED)
    assert rows["broken"] == "1 cannot be used"
    assert "val/hen/wide.png cannot be read (1x40000 scaled to 224x8960000 (HxW), to cover 224x224" in lines[0]


def test_copies_in_two_folds_leak_whichever_fold_is_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label, name in enumerate(("fox", "hen")):
        for number in range(9):
            write_image(tmp_path / "images" / name / f"{number}.png", seed=10 * label + number)
    options = (*FOLDER, "data.folds=3")
    assert said(capsys, *options, "data.fold=1")[0]["leaks"] == "none"
    for number in range(9):
        shutil.copy(tmp_path / "images" / "fox" / f"{number}.png", tmp_path / "images" / "fox" / f"{number}c.png")
    found = []
    for fold in range(3):
        rows, lines = said(capsys, *options, f"data.fold={fold}", code=EXIT_FAILED)
        leaks = [line for line in lines if line.startswith("leak: ")]
        assert rows["leaks"].startswith(f"{len(leaks)} in more than one split")
        found.append({number for number in range(9) for line in leaks if f"fox/{number}.png" in line})
    parts = [files_of(section_of(fold)).table for fold in range(3)]
    folds = {table.names[row]: fold for fold, table in enumerate(parts) for row in table.splits["test"]}
    apart = {number for number in range(9) if folds[f"fox/{number}.png"] != folds[f"fox/{number}c.png"]}
    assert apart
    assert apart <= found[0]
    assert found[0] == found[1] == found[2]


def section_of(fold: int) -> Data:
    return validation.check_config(compose_config([*FOLDER, "data.folds=3", f"data.fold={fold}"])).data


def test_a_file_that_is_listed_under_two_classes_is_named_with_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_listed(tmp_path)
    cells = [(f"deep er/bild ü {i:02d}.png", "ab"[i % 2], ("train", "val", "test")[i // 6]) for i in range(18)]
    cells.append((cells[1][0], "a", "train"))
    write_list(file, [dict(zip(("path", "label", "split"), row, strict=True)) for row in cells])
    options = ("data=list", "data.file=list.csv", "data.split_column=split", "data.image_size=8")
    rows, lines = said(capsys, *options, code=EXIT_FAILED)
    assert (rows["duplicates"], rows["contradictions"]) == ("none", "1 in more than one class")
    assert lines == ["contradiction: train: deep er/bild ü 01.png (b) = train: deep er/bild ü 01.png (a)"]


def test_numbers_that_differ_for_one_image_are_no_contradiction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_listed(tmp_path)
    cells = [(f"deep er/bild ü {i:02d}.png", i, ("train", "val", "test")[i // 6]) for i in range(18)]
    cells.append((cells[1][0], 7, "train"))
    write_list(file, [dict(zip(("path", "kg", "split"), map(str, row), strict=True)) for row in cells])
    options = ("data=list", "data.file=list.csv", "data.split_column=split", "data.image_size=8")
    rows, lines = said(capsys, *options, "data.target_columns=[kg]", "data.targets=numbers")
    assert (rows["duplicates"], rows["contradictions"]) == ("1 more than once in a split", "none")
    assert rows["other targets"] == "1 of one image; first deep er/bild ü 01.png"
    assert lines[0].startswith("twice: train: deep er/bild ü 01.png (")


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


def test_near_copies_are_leaks_contradictions_or_near_duplicates(
    photographs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, lines = said(capsys, *PHOTOGRAPHS, code=EXIT_FAILED)
    assert rows["leaks"].startswith("2 in more than one split; if they are bursts")
    assert "data.group=" in rows["leaks"]
    assert rows["contradictions"] == "2 in more than one class"
    assert rows["duplicates"] == "none"
    assert rows["near duplicates"] == "1 up to a distance of 0.1"
    assert rows["not compared"] == "2 smaller than 29 pixels, or nearly of one grey"  # a sky
    found = [re.sub(r", distance 0\.\d{4}$", "", line) for line in lines]
    assert sorted(found[:3]) == [
        "contradiction: train: train/fox/dark.png (fox) ~ train: train/hen/09.png (hen)",
        "leak and contradiction: train: train/hen/07.png (hen) ~ val: val/fox/crop.png (fox)",
        "leak: train: train/fox/06.png ~ test: test/fox/half.png",
    ]
    assert found[3] == "near: test: test/fox/22.png ~ test: test/fox/thin.png"
    distances = [float(line[-6:]) for line in lines[:4]]
    assert distances[:3] == sorted(distances[:3])  # the worst first
    assert lines[4:] == []
    rows, lines = said(capsys, *PHOTOGRAPHS, "data.near_duplicates=0")
    assert (rows["leaks"], rows["near duplicates"], lines) == ("none", "not looked for: data.near_duplicates=0", [])


def test_many_copies_of_an_image_are_one_line(photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Image.open(photographs / "test" / "fox" / "22.png") as image:
        for number in range(8):
            image.crop((number, 0, 79, 79)).save(photographs / "test" / "fox" / f"c{number}.png")
    _, lines = said(capsys, *PHOTOGRAPHS, code=EXIT_FAILED)
    (line,) = (line for line in lines if line.startswith("near: "))
    assert line.count("~") == 4
    assert re.search(r" ~ 6 more, distance 0\.0\d{3}$", line)


def test_near_images_of_a_group_are_none(photographs: Path) -> None:
    splits = read(photographs, image_size=16, memory="stream")
    burst = ("test/fox/22.png", "test/fox/thin.png", "train/fox/06.png", "test/fox/half.png")
    parts = {
        split: replace(images, groups=["burst" if name in burst else name for name in images.names])
        for split, images in splits.parts.items()
    }
    inspection = inspect(replace(splits, **parts), lambda *_: None, is_near=True)
    copies = find_copies(inspection, (), 0.1, lambda *_: None)
    assert [each.kind for each in copies].count("near") == 0
    assert ["train/fox/06.png", "test/fox/half.png"] in [
        [image.name for image in each.images] for each in copies
    ]  # a group in two splits leaks


def test_nothing_is_kept_for_near_copies_that_are_not_looked_for(photographs: Path) -> None:
    seen = inspect(read(photographs, image_size=16, memory="stream"), lambda *_: None, is_near=False).seen
    assert all(image.thumbnail is None for images in seen.values() for image in images)


def test_json_has_all_that_the_table_has_and_nothing_else_is_printed(
    photographs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(photographs / "val" / "fox" / "10.png", photographs / "val" / "fox" / "twice.png")
    (photographs / "val" / "hen" / "half.png").write_bytes(b"no image")
    assert check(["strategy=cpu", *PHOTOGRAPHS], compose.DEFAULT, is_json=True) == EXIT_FAILED
    found = json.loads(capsys.readouterr().out)
    assert found["splits"]["val"] == {"images": 13, "classes": {"fox": 7, "hen": 6}, "groups": 0}
    assert found["sizes"]["width"] == {"min": 40, "median": 80, "max": 160}
    assert found["broken"][0].endswith("half.png cannot be read (not an image): replace or delete it.")
    kinds = [each["kind"] for each in found["copies"]]
    assert sorted(kinds[:3]) == ["contradiction", "leak", "leak and contradiction"]  # before those that are equal
    assert kinds[3:] == ["twice", "near"]
    (leak,) = (each for each in found["copies"] if each["kind"] == "leak and contradiction")
    assert 0 < leak["distance"] <= 0.1
    assert leak["images"] == [
        {"split": "train", "name": "train/hen/07.png", "target": "hen"},
        {"split": "val", "name": "val/fox/crop.png", "target": "fox"},
    ]


def test_pairs_are_drawn_one_below_the_other(photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(["strategy=cpu", *PHOTOGRAPHS], compose.DEFAULT, pictures="pairs.png") == EXIT_FAILED
    assert capsys.readouterr().out.splitlines()[-1] == "pictures of 4 pairs in pairs.png"
    with Image.open("pairs.png") as sheet:
        assert sheet.size == (936, 476)
    for name, hint in {"pairs.jpg": "name a file that ends in", "pairs.png/2.png": "is not a folder"}.items():
        with pytest.raises(ValueError, match=rf"--pictures {re.escape(name)}: .*{hint}"):
            check(PHOTOGRAPHS, compose.DEFAULT, pictures=name)


def test_near_copies_in_two_folds_leak(photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photographs / "test").rename(photographs.parent / "unused")
    (photographs / "val").rename(photographs.parent / "unused too")
    for number in range(5):
        with Image.open(photographs / "train" / "fox" / f"{2 * number:02d}.png") as image:
            image.resize((120, 120)).save(photographs / "train" / "fox" / f"large {number}.png")
    rows, lines = said(capsys, *PHOTOGRAPHS, "data.folds=3", code=EXIT_FAILED)
    assert "in more than one split of a fold" in rows["leaks"]
    assert any(re.search(r"large \d\.png, distance 0\.\d{4}( \(data\.fold=\d\))?$", line) for line in lines)


def test_classes_that_only_look_different_are_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        write_image(root / "train" / "Fox" / f"{number}.png", seed=500 + number)
    assert said(capsys, *FOLDER)[0]["similar"] == "classes 'Fox' = 'fox': are they one class?"


def test_groups_that_only_look_different_are_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("p1", "P1", "1", "01")):
        write_image(root / "train" / "fox" / f"{name}_0.png", seed=600 + number)
    rows, _ = said(capsys, *FOLDER, "data.group='([^/]*?)(_0)?[.]png'", "data.shared_groups=accept")
    assert rows["similar"] == "groups '01' = '1'; 'P1' = 'p1': are they one group?"


def test_a_target_that_cannot_be_learned_is_named_with_its_sample(capsys: pytest.CaptureFixture[str]) -> None:
    rows, lines = said(capsys, "data._target_=tests.support.sources.unlabelled", code=EXIT_FAILED)
    assert rows["targets"] == "2 splits with some that cannot be learned"
    takes = "targets: task._target_=lockstep.tasks.Classification takes class numbers int64 from 0 to 9, and"
    hint = "correct them, or use another task"
    assert lines[0].startswith(f"{takes} train has -1 in digits/")
    assert lines[0].endswith(f" (1 of 70 samples): {hint}")
    assert lines[1].startswith(f"{takes} test has 10 in digits/")


def test_tensors_are_compared_by_their_pixels(capsys: pytest.CaptureFixture[str]) -> None:
    rows, lines = said(capsys)
    assert rows["train"].startswith("1,258 images (0: 115, ")
    assert rows["training"] == "1x8x8 as they are, uint8"
    assert rows["sizes"] == "all 8x8 pixels (HxW)"
    assert (rows["leaks"], lines) == ("none", [])
    few = ["data.train_size=30", "data.val_size=6", "data.test_size=6", "data.num_classes=30"]
    rows, _ = said(capsys, "data=synthetic", *few)
    assert rows["train"] == "30 images (30 classes: 1 (class 0) to 1 (class 0))"
    rows, _ = said(capsys, "data=synthetic", *few, "data.train_size=31")
    assert rows["train"] == "31 images (30 classes: 1 (class 1) to 2 (class 0))"


def test_samples_of_a_dataset_are_made_and_the_broken_ones_named(capsys: pytest.CaptureFixture[str]) -> None:
    train = "{_target_: tests.support.sources.Turned, count: 20, broken: 4}"
    options = ["data=dataset", f"data.train={train}", "data.mean=[0.5]", "data.std=[0.5]"]
    rows, (line,) = said(capsys, *options, code=EXIT_FAILED)
    assert line.startswith("broken: data.train: sample 4 cannot be made (OSError: half a file, in ")
    assert rows["memory"] == "streamed: made when they are needed (samples of Turned)"


def test_samples_of_two_datasets_leak_with_their_own_targets(capsys: pytest.CaptureFixture[str]) -> None:
    same = "{_target_: tests.support.sources.Still, count: 20}"
    options = ["data=dataset", f"data.train={same}", f"data.test={same}", "data.mean=[0.5]", "data.std=[0.5]"]
    rows, lines = said(capsys, *options, code=EXIT_FAILED)
    assert (rows["leaks"], rows["contradictions"]) == ("20 in more than one split", "none")
    assert "other targets" not in rows
    assert lines[0] == "leak: train: train/0 = test: test/0"


def test_an_error_of_the_configuration_or_missing_data_has_its_own_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"data\.root=nowhere does not exist"):
        check(["data=image_folder", "data.root=nowhere"], compose.DEFAULT)
    monkeypatch.setattr(sys, "argv", ["lockstep", "data", "check", "data=image_folder", "data.root=nowhere"])
    with pytest.raises(SystemExit) as left:
        main._command()
    assert left.value.code == EXIT_CONFIG
    assert "data.root=nowhere does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "fetch"])
def test_a_folder_is_enough(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    outputs = []
    settings = ["data.image_size=11", "strategy=cpu"]
    named = ["data=image_folder", f"data.root={root.name}"]
    for words in ([root.name, *settings], [*settings, root.name], [*named, *settings]):
        monkeypatch.setattr(sys, "argv", ["lockstep", "data", command, *words])
        assert main._command() == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2]
    assert "20 images" in outputs[0] or "12 images (fox: 6, hen: 6)" in outputs[0]

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets
from torchvision.datasets import utils as downloads
from torchvision.transforms import v2

from lockstep.data.images import decoded_splits
from lockstep.data.images.decoded_image import decode
from lockstep.data.images.image_table import list_classes, list_images
from lockstep.data.images.preprocessing import Preprocessing
from lockstep.data.sources.builtin import cifar10, digits, fashion_mnist
from lockstep.data.sources.folders import image_folder, unlabeled_folder
from lockstep.data.splits import ImageError, Images, Splits, all_pixels
from lockstep.system.text import similar_names
from tests.support.image_files import SETTINGS, write_image

FOLDER: dict[str, Any] = {**SETTINGS, "image_size": None}


def unlabeled(root: str, *, size: list[int]) -> tuple[Images, Any]:
    return unlabeled_folder(
        root,
        preprocessing=Preprocessing.from_keys(size, "auto", "crop", "auto", "white"),
        channels=3,
    )


def decoded(path: Path) -> torch.Tensor:
    return decode(
        str(path), 1, Preprocessing.from_keys(None, "auto", "crop", "auto", "white")
    ).pixels


def pixels_of(seed: int, height: int = 8, width: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_classes(folder: Path, classes: dict[str, int]) -> None:
    for seed, (name, count) in enumerate(classes.items()):
        for i in range(count):
            write_image(folder / name / f"{i}.png", 100 * seed + i, 8, 8)


def read(root: Path, **changes: Any) -> Splits:
    return image_folder(root=str(root), **FOLDER | changes)


def names(splits: Splits) -> list[str]:
    return [name for part in splits.by_name.values() for name in part.names]


def assert_well_formed(splits: Splits) -> None:
    for part in splits.by_name.values():
        assert (all_pixels(part.pixels).dtype, part.targets.dtype) == (torch.uint8, torch.int64)
        assert len(all_pixels(part.pixels)) == len(part.targets) == len(part.names) > 0


def test_digits_as_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    splits = digits(val_fraction=0.1, test_fraction=0.2, split_seed=0)
    assert sorted(names(splits)) == sorted(f"digits/{i}" for i in range(1797))
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    for part in splits.by_name.values():
        index = [int(name.removeprefix("digits/")) for name in part.names]
        assert part.targets.tolist() == labels[index].tolist()
        assert (
            all_pixels(part.pixels).flatten(1).double() - torch.from_numpy(images[index]) * 255 / 16
        ).abs().max() <= 0.5


class FewImages:
    """A data set as torchvision reads it."""

    classes = ("cat", "dog")

    def __init__(self, root: str, train: bool, download: bool) -> None:
        count = 40 if train else 10
        self.data = np.random.default_rng(count).integers(0, 256, (count, 4, 5, 3), dtype=np.uint8)
        self.targets = [0, 1] * (count // 2)


def test_cifar10(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "CIFAR10", FewImages)
    splits = cifar10(root="", download=False, val_fraction=0.2, split_seed=0)
    assert_well_formed(splits)
    assert [len(part) for part in splits.by_name.values()] == [32, 8, 10]
    for part in splits.by_name.values():
        rows = [int(name.partition("/")[2]) for name in part.names]
        pixels = FewImages("", part is not splits.test, False).data[rows]
        assert torch.equal(all_pixels(part.pixels), torch.from_numpy(pixels).permute(0, 3, 1, 2))
        assert part.targets.tolist() == [row % 2 for row in rows]


@pytest.mark.parametrize(("size", "scaled"), [(96, 96), ([5, 9], [7, 9])])
def test_cifar10_resized(
    size: int | list[int], scaled: int | list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "CIFAR10", FewImages)
    settings: dict[str, Any] = {"root": "", "download": False, "val_fraction": 0.2, "split_seed": 0}
    usual, resized = cifar10(**settings), cifar10(**settings, image_size=size)
    transform = v2.Compose([v2.Resize(scaled, antialias=True), v2.CenterCrop(size)])
    for part, expected in zip(resized.by_name.values(), usual.by_name.values(), strict=True):
        assert torch.equal(all_pixels(part.pixels), transform(all_pixels(expected.pixels)))
        assert list(part.names) == list(expected.names)


@pytest.mark.parametrize(
    ("source", "download", "hint"),
    [(fashion_mnist, True, "no route"), (cifar10, False, "set data.download=true")],
)
def test_download_fails(
    source: Any, download: bool, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(downloads, "download_url", no_network)
    with pytest.raises(FileNotFoundError, match=rf"data\.root={tmp_path} has no readable .*{hint}"):
        source(root=str(tmp_path), download=download, val_fraction=0.1, split_seed=0)


def test_class_folders_split(tmp_path: Path) -> None:
    write_classes(tmp_path, {"red fox": 7, "train": 5, "ärger": 4})
    expected = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png"))
    for name in (".thumbs/9.png", "@eaDir/9.png", "red fox/deep/__MACOSX/9.png", "red fox/._1.png"):
        write_image(tmp_path / name)
    splits = read(tmp_path)
    assert_well_formed(splits)
    assert splits.class_names == ("red fox", "train", "ärger")
    assert sorted(names(splits)) == expected == sorted(list_images(tmp_path))
    for part in splits.by_name.values():
        assert set(part.targets.tolist()) == {0, 1, 2}
        for pixels, label, name in zip(
            all_pixels(part.pixels), part.targets.tolist(), part.names, strict=True
        ):
            assert Path(name).parts[0] == splits.class_names[label]
            assert torch.equal(
                pixels,
                torch.from_numpy(pixels_of(100 * label + int(Path(name).stem))).permute(2, 0, 1),
            )


def write_patients(folder: Path) -> Path:
    """Write two classes of 12 patients with 1 to 4 images each, such as ill/p02/p02_1.png."""
    for number in range(24):
        for image in range(1 + number % 4):
            name = ("ill", "well")[number % 2]
            write_image(
                folder / name / f"p{number:02}" / f"p{number:02}_{image}.png",
                seed=10 * number + image,
            )
    return folder


@pytest.mark.parametrize("group", [r"/(p\d+)_", 1])
def test_group_in_one_split(tmp_path: Path, group: str | int) -> None:
    splits = read(write_patients(tmp_path), group=group)
    found = {
        (patient, split) for split, part in splits.by_name.items() for patient in part.groups or ()
    }
    assert len(found) == 24


def test_group_levels(tmp_path: Path) -> None:
    for name in (
        "train/a/x/1/1.png",
        "train/a/x/2/1.png",
        "train/b/x/1/1.png",
        "test/a/y/1/1.png",
        "test/b/z/9/1.png",
    ):
        write_image(tmp_path / name)
    for levels, expected in (
        (1, ["x", "x", "x", "y", "z"]),
        (2, ["x/1", "x/2", "x/1", "y/1", "z/9"]),
        ("^(./.)", ["a/x", "a/x", "b/x", "a/y", "b/z"]),
    ):
        assert list_classes(str(tmp_path), levels).groups == expected


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (r"/(p\d+", r"data\.group=.*missing \)"),
        (r"/p\d+_", r"data\.group=.*no such group"),
        (r"/(p0\d)_", r"data\.group=.*37 of 60 images.* ill/p10/p10_0\.png"),
        (r"/(q)?p", r"data\.group=.*60 of 60 images"),
        (2, r"data\.group=2 .*60 of 60 images.* ill/p00/p00_0\.png"),
    ],
)
def test_group_not_found(tmp_path: Path, group: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(write_patients(tmp_path), group=group)


@pytest.mark.parametrize("missing", [(), ("val",), ("val", "test")])
def test_missing_split_folders(tmp_path: Path, missing: tuple[str, ...]) -> None:
    for name in {"train", "val", "test"} - set(missing):
        write_classes(tmp_path / name, {"cat": 4, "dog": 4})
    splits = read(tmp_path, **{} if missing else {"val_fraction": 0, "test_fraction": 0})
    for name in ("val", "test"):
        folder = "train" if name in missing else name
        assert {file.partition("/")[0] for file in splits.by_name[name].names} == {folder}
    assert len(set(names(splits))) == len(names(splits)) == 8 * (3 - len(missing))


# -- damaged files ---------------------------------------------------------------------------------


def test_decode_postscript(tmp_path: Path) -> None:
    Image.fromarray(pixels_of(0, 16, 16)).save(tmp_path / "a.jpg", format="EPS")
    with pytest.raises(ImageError, match="not an image"):
        decoded(tmp_path / "a.jpg")


def exif_of(*entries: tuple[int, int, int, int], rest: bytes = b"") -> bytes:
    """EXIF of (tag, type, count, value)."""
    table = b"".join(struct.pack(">HHII", *entry) for entry in entries)
    return b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", len(entries)) + table + rest


TURNED = (0x0112, 3, 1, 6 << 16)
BAD_EXIF = {
    "no TIFF header": (b"Exif\0\0XX\0*\0\0\0\x08\0\0", False),
    "no number": (exif_of((0x0112, 2, 4, 0x61626300)), False),
    "cut after the orientation": (exif_of(TURNED, (0x010F, 2, 99, 5000)), True),
    "a table that ends early": (exif_of(TURNED)[:-4], False),
    "a resolution of -5/0": (
        exif_of(TURNED, (0x011A, 10, 1, 38), rest=bytes(4) + struct.pack(">2i", -5, 0)),
        True,
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's of corrupt EXIF
@pytest.mark.parametrize(("exif", "is_turned"), BAD_EXIF.values(), ids=BAD_EXIF)
def test_bad_exif(tmp_path: Path, exif: bytes, is_turned: bool) -> None:
    lying = Image.fromarray(pixels_of(0, 8, 16)).convert("L")
    for suffix in (".png", ".jpg"):
        lying.save(tmp_path / f"plain{suffix}")
        lying.save(tmp_path / f"a{suffix}", exif=exif)
        plain, pixels = (decoded(tmp_path / f"{name}{suffix}") for name in ("plain", "a"))
        assert torch.equal(pixels, plain.rot90(-1, (1, 2)) if is_turned else plain)


def test_labels_with_absent_class(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"cat": 3, "dog": 3, "owl": 3})
    write_classes(tmp_path / "val", {"cat": 3, "owl": 3})
    write_classes(tmp_path / "test", {"owl": 3})
    splits = read(tmp_path)
    assert splits.val.targets.tolist() == [0, 0, 0, 2, 2, 2]
    assert splits.test.targets.tolist() == [2, 2, 2]


TWO = ("cat/1.png", "dog/1.png")
LAYOUTS: dict[str, tuple[tuple[str, ...], str]] = {  # files, or folders that end in /
    "nothing": (("notes.txt",), r"no class folders in .*train/, val/ or test/"),
    "one class": (("cat/1.png",), r"one class only, cat: add"),
    "an empty class": ((*TWO, "owl/notes.txt", "owl/._1.png"), r"without an image: .*owl"),
    "no train": (("val/cat/1.png", "val/dog/1.png"), r'has "val" but no folder "train"'),
    "an empty split": (
        (*(f"train/{name}" for name in TWO), "val/cat/"),
        r"without an image: \S*/val\. Add images",
    ),
    "a split without classes": (
        (*(f"train/{name}" for name in TWO), "test/1.png"),
        r"no class folders in .*test",
    ),
    "a class of test alone": (
        (*(f"train/{name}" for name in TWO), "test/fox/1.png"),
        r"train/ lacks: fox\. Add",
    ),
    "another folder": (
        tuple(f"{part}/{name}" for part in ("train", "dev") for name in TWO),
        "are not read, dev",
    ),
    "two folders of val": (
        tuple(f"{part}/{name}" for part in ("train", "val", "valid") for name in TWO),
        r"has 2 folders for val: val, valid\. Keep one",
    ),
    "no test": (
        tuple(f"train/{name}" for name in TWO),
        r'no split "test" and data\.test_fraction=0',
    ),
    "folds": (
        tuple(f"fold{number}/{name}" for number in (1, 2) for name in TWO),
        r"the same folders and no image in each of fold1, fold2.*name them train, val, test",
    ),
}


def make_layout(root: Path, files: Iterable[str]) -> None:
    for name in files:
        if name.endswith("/"):
            (root / name).mkdir(parents=True)
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()


@pytest.mark.parametrize(("files", "message"), LAYOUTS.values(), ids=LAYOUTS)
def test_layout_refused(tmp_path: Path, files: tuple[str, ...], message: str) -> None:
    make_layout(tmp_path, files)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read(tmp_path, val_fraction=0, test_fraction=0)


@pytest.mark.parametrize(
    ("files", "classes"),
    [
        (
            ("valid/a/1.png", "valid/b/1.png", "invalid/a/1.png", "invalid/c/1.png"),
            ("invalid", "valid"),
        ),
        (("cat/images/1.png", "dog/images/1.png"), ("cat", "dog")),  # as Tiny ImageNet
        (("cat/a/1.png", "cat/b/1.png", "dog/a/1.png", "dog/b/1.png", "dog/1.png"), ("cat", "dog")),
    ],
)
def test_nested_class_folders(
    tmp_path: Path, files: tuple[str, ...], classes: tuple[str, ...]
) -> None:
    make_layout(tmp_path, files)
    assert list_classes(str(tmp_path)).class_names == classes


@pytest.mark.parametrize(
    "names", [("Training", "Testing"), ("TRAIN", "Valid", "test"), ("training", "validation")]
)
def test_split_folder_names(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        write_classes(tmp_path / name, {"cat": 4, "dog": 4, "owl": 4})
    listing = list_classes(str(tmp_path))
    found = {
        split: {listing.names[row].partition("/")[0] for row in rows}
        for split, rows in listing.splits.items()
    }
    splits = {"tr": "train", "va": "val", "te": "test"}
    assert found == {splits[name[:2].lower()]: {name} for name in names}


def test_links_to_folders(tmp_path: Path) -> None:
    write_classes(tmp_path / "root", {"a": 1, "b": 1})
    write_image(tmp_path / "pool" / "5.png")
    for name, target in (
        ("pool", "../../pool"),
        ("pool again", "../../pool"),
        ("self", "."),
        ("up", ".."),
    ):
        (tmp_path / "root" / "a" / name).symlink_to(target)
    (tmp_path / "pool" / "back").symlink_to(tmp_path)
    (tmp_path / "root" / "c").symlink_to(tmp_path / "pool")
    names = ["a/0.png", "a/pool/5.png", "b/0.png", "c/5.png"]
    assert list(list_classes(str(tmp_path / "root")).names) == names
    assert list(list_images(tmp_path / "root")) == names[:3]  # c is pool once more


def test_class_blanks_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_classes(tmp_path, dict.fromkeys(("cat", "cat ", " dog", "dog\u200b", "d\u200bog"), 4))
    splits = read(tmp_path)
    assert splits.class_names == ("cat", "dog")
    assert torch.cat([part.targets for part in splits.by_name.values()]).bincount().tolist() == [
        8,
        12,
    ]
    assert r"are ignored: ' dog', 'cat ', 'dog\u200b' and 1 more" in capsys.readouterr().out


def test_broken_links_listed(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 1, "b": 1})
    for name in ("a/1.png", "b/1.png", "b/2.png", "b/3.png", "b/other"):
        (tmp_path / name).symlink_to("nowhere")
    line = r"cannot be read: a/1\.png, b/1\.png, b/2\.png and 1 more\. Fix or delete them"
    with pytest.raises(ValueError, match=line):
        list_classes(str(tmp_path))
    assert list_images(tmp_path) == ["a/0.png", "a/1.png", *(f"b/{i}.png" for i in range(4))]


def test_images_outside_of_classes_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_layout(tmp_path, [*(f"train/{name}" for name in TWO), "b.png", "train/c.png", ".d.png"])
    assert len(list_classes(str(tmp_path)).names) == len(TWO)
    line = "2 images outside of the class folders are not read, such as b.png: move them"
    assert line in capsys.readouterr().out


def test_links_to_one_file(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 20, "b": 20})
    for number in range(20):
        (tmp_path / "a" / f"link {number}.png").symlink_to(f"{number}.png")
    split_of = {
        name: split for split, part in read(tmp_path).by_name.items() for name in part.names
    }
    assert len(split_of) == 60
    assert all(
        split_of[f"a/{number}.png"] == split_of[f"a/link {number}.png"] for number in range(20)
    )


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("Cat", "cat", "dog"), "'Cat' = 'cat'"),
        (("golden retriever", "goldenretriever", "golden  Retriever"), None),
        (("caf\u00e9", "cafe\u0301"), r"'caf\xe9' = 'cafe\u0301'"),
        (("cat", "c\u200bat"), r"'cat' = 'c\u200bat'"),
        ((*"abcdefghij", *"ABCDE"), "'a' = 'A'; 'b' = 'B'; 'c' = 'C' and 2 more"),
        (("1", "01", "1.0", "10", "-1", "1e1"), "'1' = '01' = '1.0'"),
        (
            ("0", "-0", "inf", "infinity", "nan", "n01", "n1", "9" * 41, "0" + "9" * 41),
            "'0' = '-0'",
        ),
        (("crane", "crane"), ""),
        (("STRASSE", "straße", "a", "A"), "'STRASSE' = 'straße'; 'a' = 'A'"),
    ],
)
def test_similar_names(names: tuple[str, ...], found: str | None) -> None:
    assert similar_names(names) == (" = ".join(map(repr, names)) if found is None else found)


def test_mixed_sizes_refused(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 3, "b": 3})
    write_image(tmp_path / "b" / "9.png", height=6, width=7)
    with pytest.raises(
        ValueError, match=r"data\.image_size=null.*0\.png has 8x8.*9\.png 6x7.*set data\.image_size"
    ):
        read(tmp_path)


def test_images_beyond_memory_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_classes(tmp_path, {"a": 4, "b": 4})
    needed = 8 * 3 * 50 * 50
    monkeypatch.setattr(decoded_splits, "available_bytes", lambda: needed)
    assert all_pixels(read(tmp_path, image_size=50).train.pixels).shape[1:] == (3, 50, 50)
    monkeypatch.setattr(decoded_splits, "available_bytes", lambda: needed - 1)
    with pytest.raises(ValueError, match=r"KiB.*set a smaller data\.image_size"):
        read(tmp_path, image_size=50)


def test_unlabeled_folder(tmp_path: Path) -> None:
    for name in ("b.png", "a/z.png", "a/deep/er/1.jpg", ".hidden.png"):
        write_image(tmp_path / name, height=9, width=12)
    images, _ = unlabeled(str(tmp_path), size=[4, 6])
    assert images.names == ["a/deep/er/1.jpg", "a/z.png", "b.png"]
    assert all_pixels(images.pixels).shape == (3, 3, 4, 6)
    assert images.targets.tolist() == [-1, -1, -1]


def test_files_digest(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        write_image(tmp_path / name, height=9, width=12)
    digests = [unlabeled(str(tmp_path), size=[4, 6])[1] for _ in range(2)]
    (tmp_path / "b.png").rename(tmp_path / "c.png")
    digests.append(unlabeled(str(tmp_path), size=[4, 6])[1])
    (tmp_path / "c.png").write_bytes(b"other")
    digests.append(unlabeled(str(tmp_path), size=[4, 6])[1])
    assert [digests.index(digest) for digest in digests] == [0, 0, 2, 3]

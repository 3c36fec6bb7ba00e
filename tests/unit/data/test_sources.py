import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.datasets import cifar
from torchvision.datasets import utils as downloads
from torchvision.transforms.v2 import functional as F

from lockstep.data.images.decode import ImageFault, resize
from lockstep.data.images.listing import IMAGE_SUFFIXES
from lockstep.data.images.pixels import whole
from lockstep.data.images.splits import Images, Splits
from lockstep.data.sources import folders
from lockstep.data.sources.builtin import cifar10, digits, fashion_mnist, synthetic
from lockstep.data.sources.folders import image_folder, unlabelled_folder
from tests.support.image_files import SETTINGS

REPOSITORY = Path(__file__).parents[3]
TEST_DATA = Path(os.environ.get("LOCKSTEP_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
FOLDER = {**SETTINGS, "image_size": None}


def pixels_of(seed: int, height: int = 8, width: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write(path: Path, seed: int = 0, height: int = 8, width: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels_of(seed, height, width)).save(path)
    return path


def write_classes(folder: Path, classes: dict[str, int]) -> Path:
    for seed, (name, count) in enumerate(classes.items()):
        for i in range(count):
            write(folder / name / f"{i}.png", seed=100 * seed + i)
    return folder


def read(root: Path, **changes: Any) -> Splits:
    return image_folder(root=str(root), **FOLDER | changes)


def names(splits: Splits) -> list[str]:
    return [name for part in (splits.train, splits.val, splits.test) for name in part.names]


def assert_well_formed(splits: Splits) -> None:
    for part in (splits.train, splits.val, splits.test):
        assert whole(part.pixels).dtype == torch.uint8
        assert part.targets.dtype == torch.int64
        assert whole(part.pixels).is_contiguous()
        assert len(part) == len(whole(part.pixels)) == len(part.targets) == len(part.names) > 0
        assert 0 <= part.targets.min() <= part.targets.max() < len(splits.class_names)


def same(a: Images, b: Images) -> bool:
    return torch.equal(whole(a.pixels), whole(b.pixels)) and torch.equal(a.targets, b.targets) and a.names == b.names


def test_digits_are_scikit_learns_each_in_exactly_one_split() -> None:
    from sklearn.datasets import load_digits

    splits = digits(val_fraction=0.1, test_fraction=0.2, split_seed=0)
    assert_well_formed(splits)
    assert sorted(names(splits)) == sorted(f"digits/{i}" for i in range(1797))
    assert (len(splits.val), len(splits.test)) == (180, 359)
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    for part in (splits.train, splits.val, splits.test):
        index = [int(name.removeprefix("digits/")) for name in part.names]
        assert part.targets.tolist() == labels[index].tolist()
        assert (whole(part.pixels).flatten(1).double() - torch.from_numpy(images[index]) * 255 / 16).abs().max() <= 0.5


def test_the_same_seed_gives_the_same_split_and_another_seed_another() -> None:
    first, again, other = (digits(val_fraction=0.1, test_fraction=0.2, split_seed=seed) for seed in (0, 0, 1))
    assert same(first.train, again.train)
    assert same(first.val, again.val)
    assert same(first.test, again.test)
    assert set(first.test.names) != set(other.test.names)


@pytest.mark.parametrize(
    ("val", "test", "message"),
    [
        (0.0, 0.2, r"data\.val_fraction=0\.0 of 1797 images makes a split of 0"),
        (0.1, 1e-5, r"data\.test_fraction=1e-05"),
        (-0.1, 0.2, r"data\.val_fraction=-0\.1"),
        (1.0, 0.2, r"data\.val_fraction=1\.0"),
        (0.5, 0.6, r"data\.val_fraction=0\.5 and data\.test_fraction=0\.6 of 1797 images leave none for training"),
    ],
)
def test_fractions_that_leave_a_split_empty_are_named(val: float, test: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        digits(val_fraction=val, test_fraction=test, split_seed=0)


@pytest.mark.skipif(
    not (TEST_DATA / "FashionMNIST/raw").is_dir(),
    reason=f"no FashionMNIST/raw in {TEST_DATA}: set LOCKSTEP_TEST_DATA to the folder that holds it",
)
def test_fashion_mnist_is_the_file_contents_with_val_cut_off_train() -> None:
    splits = fashion_mnist(root=str(TEST_DATA), download=False, val_fraction=0.1, split_seed=0)
    assert_well_formed(splits)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (54_000, 6_000, 10_000)
    assert len(set(names(splits))) == 70_000
    assert splits.class_names[9] == "Ankle boot"
    raw = TEST_DATA / "FashionMNIST/raw"
    for part, prefix in ((splits.val, "train"), (splits.test, "t10k")):
        index = np.array([int(name.split("/")[1]) for name in part.names])
        images = np.fromfile(raw / f"{prefix}-images-idx3-ubyte", np.uint8)[16:].reshape(-1, 1, 28, 28)
        labels = np.fromfile(raw / f"{prefix}-labels-idx1-ubyte", np.uint8)[8:]
        assert torch.equal(whole(part.pixels), torch.from_numpy(images[index]))
        assert part.targets.tolist() == labels[index].tolist()


def write_cifar(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write six CIFAR-10 batches of ten images; return the first batch and the test batch."""

    def dump(name: str, content: dict[str, Any]) -> None:
        (folder / name).write_bytes(pickle.dumps(content))

    folder.mkdir()
    random = np.random.default_rng(0)
    batches = [random.integers(0, 256, (10, 3072), dtype=np.uint8) for _ in range(6)]
    for name, batch in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], batches, strict=True):
        dump(name, {"data": batch, "labels": list(range(10))})
    dump("batches.meta", {"label_names": [f"thing {i}" for i in range(10)]})
    return batches[0], batches[5]


def test_cifar10_is_the_file_contents_as_images_of_three_channels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, test = write_cifar(tmp_path / "cifar-10-batches-py")
    monkeypatch.setattr(cifar, "check_integrity", lambda path, md5=None: os.path.isfile(path))
    splits = cifar10(root=str(tmp_path), download=False, val_fraction=0.2, split_seed=0)
    assert_well_formed(splits)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (40, 10, 10)
    assert splits.class_names[3] == "thing 3"
    assert torch.equal(whole(splits.test.pixels), torch.from_numpy(test).view(-1, 3, 32, 32))
    known = {f"train/{i}": torch.from_numpy(first[i]).view(3, 32, 32) for i in range(10)}
    found = {
        name: image
        for part in (splits.train, splits.val)
        for name, image in zip(part.names, whole(part.pixels), strict=True)
    }
    assert all(torch.equal(found[name], image) for name, image in known.items())


@pytest.mark.parametrize(
    ("source", "looked_for"), [(fashion_mnist, "FashionMNIST/raw"), (cifar10, "cifar-10-batches-py")]
)
def test_absent_files_without_download_are_one_error_with_the_cure(
    source: Any, looked_for: str, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        source(root=str(tmp_path), download=False, val_fraction=0.1, split_seed=0)
    assert f"data.root={tmp_path}" in str(caught.value)
    assert f"looked for {tmp_path / looked_for}" in str(caught.value)
    assert "set data.download=true" in str(caught.value)


@pytest.mark.parametrize("source", [fashion_mnist, cifar10])
@pytest.mark.parametrize("fault", [OSError("no route"), TimeoutError("too slow"), RuntimeError("bad checksum")])
def test_a_failed_download_is_one_error_with_the_cure(
    source: Any, fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(downloads, "download_url", no_network)
    with pytest.raises(FileNotFoundError, match=r"data\.root=.*looked for.*check the network") as caught:
        source(root=str(tmp_path), download=True, val_fraction=0.1, split_seed=0)
    assert str(fault) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_files_are_one_error_that_says_to_delete_them(tmp_path: Path) -> None:
    raw = tmp_path / "FashionMNIST/raw"
    raw.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{name}-ubyte").touch()
    with pytest.raises(FileNotFoundError, match="delete damaged files"):
        fashion_mnist(root=str(tmp_path), download=False, val_fraction=0.1, split_seed=0)


def test_class_folders_are_cut_three_ways_and_every_file_is_in_one_split(tmp_path: Path) -> None:
    write_classes(tmp_path, {"red fox": 7, "ärger": 5, "train": 4})
    splits = read(tmp_path)
    assert_well_formed(splits)
    assert splits.class_names == ("red fox", "train", "ärger")
    assert (len(splits.train), len(splits.val), len(splits.test)) == (8, 4, 4)
    assert sorted(names(splits)) == sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.png"))


def test_pixels_label_and_name_of_a_file_stay_together(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 40, "b": 40})
    splits = read(tmp_path)
    for part in (splits.train, splits.val, splits.test):
        for pixels, label, name in zip(whole(part.pixels), part.targets.tolist(), part.names, strict=True):
            seed = 100 * label + int(Path(name).stem)
            assert Path(name).parts[0] == splits.class_names[label]
            assert torch.equal(pixels, torch.from_numpy(pixels_of(seed)).permute(2, 0, 1))


def test_split_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    for name, count in (("train", 3), ("val", 2), ("test", 1)):
        write_classes(tmp_path / name, {"cat": count, "dog": count})
    splits = read(tmp_path, val_fraction=0, test_fraction=0)
    assert splits.val.names == ("val/cat/0.png", "val/cat/1.png", "val/dog/0.png", "val/dog/1.png")
    assert (len(splits.train), len(splits.test)) == (6, 2)


@pytest.mark.parametrize("missing", [("val",), ("test",), ("val", "test")])
def test_a_missing_split_folder_is_cut_off_train(tmp_path: Path, missing: tuple[str, ...]) -> None:
    for name in {"train", "val", "test"} - set(missing):
        write_classes(tmp_path / name, {"cat": 4, "dog": 4})
    splits = read(tmp_path)
    for name in ("val", "test"):
        part: Images = getattr(splits, name)
        folder = "train" if name in missing else name
        assert len(part) == (2 if name in missing else 8)
        assert all(file.startswith(f"{folder}/") for file in part.names)
    assert len(set(names(splits))) == len(names(splits)) == 8 * (3 - len(missing))


@pytest.mark.parametrize("name", ["val", "test"])
def test_a_missing_split_folder_without_a_fraction_is_an_error(tmp_path: Path, name: str) -> None:
    write_classes(tmp_path / "train", {"cat": 4, "dog": 4})
    with pytest.raises(ValueError, match=f'has no folder "{name}" and data.{name}_fraction=0: add {name}/'):
        read(tmp_path, **{f"{name}_fraction": 0})


@pytest.mark.parametrize("suffix", sorted(IMAGE_SUFFIXES))
@pytest.mark.parametrize("channels", [1, 3])
def test_every_format_is_read_as_grey_or_colour(tmp_path: Path, suffix: str, channels: int) -> None:
    for name in ("a", "b"):
        for i in range(4):
            path = tmp_path / name / f"{i}{suffix.upper()}"
            path.parent.mkdir(exist_ok=True)
            if suffix in (".pgm", ".gif"):
                Image.fromarray(pixels_of(i)).convert("L").save(path)
            else:
                Image.fromarray(pixels_of(i)).save(path)
    pixels = whole(read(tmp_path, channels=channels).train.pixels)
    assert pixels.shape == (4, channels, 8, 8)
    assert pixels.float().std() > 20


def grey(path: Path) -> Tensor:
    return whole(unlabelled_folder(str(path), image_size=(8, 8), channels=1).pixels)[0, 0]


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held turned by a quarter
    lying = Image.fromarray(pixels_of(0)).convert("L")
    lying.save(tmp_path / "a.png", exif=exif)
    assert torch.equal(grey(tmp_path / "a.png"), torch.from_numpy(np.array(lying)).rot90(-1))


def test_sixteen_bit_images_are_cut_to_eight_and_deeper_ones_refused(tmp_path: Path) -> None:
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    Image.fromarray(deep).save(tmp_path / "a.png")
    assert grey(tmp_path / "a.png").tolist() == (deep // 256).tolist()
    Image.fromarray(deep.astype(np.float32)).save(tmp_path / "b.tif")
    with pytest.raises(ValueError, match=r"b\.tif cannot be read .32-bit pixels"):
        grey(tmp_path / "b.tif")


def test_transparency_is_dropped_without_a_warning(tmp_path: Path) -> None:
    palette = Image.fromarray(pixels_of(0)).convert("P")
    palette.save(tmp_path / "a.png", transparency=bytes(range(256)))
    assert torch.equal(grey(tmp_path / "a.png"), torch.from_numpy(np.array(palette.convert("RGB").convert("L"))))


@pytest.mark.parametrize(("height", "width"), [(20, 30), (30, 20), (5, 9), (10, 10)])
def test_image_size_scales_the_shorter_side_and_crops_the_centre(tmp_path: Path, height: int, width: int) -> None:
    for name in ("a", "b"):
        for i in range(4):
            write(tmp_path / name / f"{i}.png", seed=i, height=height, width=width)
    part = read(tmp_path, image_size=10).train
    for pixels, name in zip(whole(part.pixels), part.names, strict=True):
        image = torch.from_numpy(pixels_of(int(Path(name).stem), height, width)).permute(2, 0, 1)
        assert torch.equal(pixels, F.center_crop(F.resize(image, [10], antialias=True), [10]))


@pytest.mark.parametrize("capability", ["AVX2", "DEFAULT"])
@pytest.mark.parametrize("shape", [(3, 20, 30), (1, 8, 8), (2, 3, 16, 12)])
@pytest.mark.parametrize("size", [[10, 15], [24, 9], [8, 8]])
def test_images_are_resized_to_the_bits_of_torchvision(
    monkeypatch: pytest.MonkeyPatch, capability: str, shape: tuple[int, ...], size: list[int]
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    for given in (images, (images * 255).to(torch.uint8)):
        assert torch.equal(resize(given, size), F.resize(given, size, antialias=True))


def test_images_of_two_sizes_need_an_image_size(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 3, "b": 3})
    write(tmp_path / "b" / "9.png", height=6, width=7)
    with pytest.raises(
        ValueError, match=r"data\.image_size=null.*0\.png has 8x8.*9\.png has 6x7.*set data\.image_size"
    ):
        read(tmp_path)
    assert whole(read(tmp_path, image_size=5).train.pixels).shape[1:] == (3, 5, 5)


def test_all_broken_images_are_named_at_once(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 30, "b": 30})
    whole = (tmp_path / "a" / "5.png").read_bytes()
    (tmp_path / "a" / "5.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "a" / "7.png").write_text("not an image")
    (tmp_path / "b" / "9.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"5\.png cannot be read.*replace or delete it") as caught:
        read(tmp_path, image_size=8, val_fraction=0.02, test_fraction=0.02)
    assert all(str(tmp_path / name) in str(caught.value) for name in ("a/5.png", "a/7.png", "b/9.png"))


def test_many_broken_images_are_counted(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 20, "b": 20})
    for path in (tmp_path / "a").iterdir():
        path.write_text("broken")
    with pytest.raises(ValueError, match="and 10 more") as caught:
        read(tmp_path, image_size=8)
    assert str(caught.value).count("\n") == 10


def test_an_empty_class_folder_is_named(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "owl").mkdir()
    (tmp_path / "owl" / "._hidden.png").touch()
    (tmp_path / "owl" / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"without an image .*owl"):
        read(tmp_path)


def test_class_folders_that_differ_from_train_are_named_on_both_sides(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"cat": 3, "dog": 3, "owl": 3})
    write_classes(tmp_path / "test", {"cat": 3, "fox": 3})
    message = r"3 classes in train/ but 2 in test/: only in train/: dog, owl; only in test/: fox"
    with pytest.raises(ValueError, match=message):
        read(tmp_path)
    write_classes(tmp_path / "test", {"dog": 3, "owl": 3})
    with pytest.raises(ValueError, match="only in train/: none; only in test/: fox"):
        read(tmp_path)


def test_wrong_roots_are_told_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data\.root=.*nowhere does not exist"):
        read(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no class folders.*looked for train/, val/ or test/"):
        read(tmp_path)
    write_classes(tmp_path / "only", {"a": 3})
    with pytest.raises(ValueError, match=r"one class only, a: add"):
        read(tmp_path / "only")
    write_classes(tmp_path / "parts" / "val", {"a": 3, "b": 3})
    with pytest.raises(FileNotFoundError, match=r'has "val" but no folder "train"'):
        read(tmp_path / "parts")


def test_a_test_folder_without_class_folders_is_not_passed_over(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"a": 3, "b": 3})
    write(tmp_path / "test" / "1.png")
    with pytest.raises(FileNotFoundError, match=r"no class folders in .*test"):
        read(tmp_path)


def test_folders_beside_train_that_nothing_reads_are_named(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        write_classes(tmp_path / name, {"a": 3, "b": 3})
    with pytest.raises(ValueError, match="nothing reads: valid"):
        read(tmp_path)


def test_more_than_the_memory_is_refused_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_classes(tmp_path, {"a": 4, "b": 4})
    needed = 8 * 3 * 50 * 50
    monkeypatch.setattr(folders, "available_bytes", lambda: needed)
    assert whole(read(tmp_path, image_size=50).train.pixels).shape == (4, 3, 50, 50)
    monkeypatch.setattr(folders, "available_bytes", lambda: needed - 1)
    with pytest.raises(ValueError, match=r"GiB.*set a smaller data\.image_size"):
        read(tmp_path, image_size=50)


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="only Linux tells its available memory")
def test_available_memory_is_between_a_mebibyte_and_all_of_it() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = folders.available_bytes()
    assert available is not None
    assert 2**20 < available <= total


def test_channels_other_than_grey_and_colour_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.channels=2"):
        read(tmp_path, channels=2)


def test_prediction_reads_every_image_below_a_folder_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b.png", "a/z.png", "a/deep/er/1.jpg", ".hidden.png"):
        write(tmp_path / name, height=9, width=12)
    images = unlabelled_folder(str(tmp_path), image_size=(4, 6), channels=3)
    assert images.names == ("a/deep/er/1.jpg", "a/z.png", "b.png")
    assert whole(images.pixels).shape == (3, 3, 4, 6)
    assert images.targets.tolist() == [-1, -1, -1]


def test_what_prediction_cannot_read_is_listed_and_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    for number in range(80):  # several runs of a thread
        write(tmp_path / f"{number:02}.png", height=9, width=12, seed=number)
    settings: Any = {"image_size": (4, 6), "channels": 3}
    sound = unlabelled_folder(str(tmp_path), **settings)
    for number, content in ((0, b""), (33, b"no image"), (79, (tmp_path / "79.png").read_bytes()[:60])):
        (tmp_path / f"{number:02}.png").write_bytes(content)
    broken: list[str] = []
    images = unlabelled_folder(str(tmp_path), **settings, broken=broken)
    kept = [number for number in range(80) if number not in (0, 33, 79)]
    assert images.names == tuple(f"{number:02}.png" for number in kept)
    assert torch.equal(whole(images.pixels), whole(sound.pixels)[kept])
    assert images.targets.tolist() == [-1] * 77
    assert [line.split()[1] for line in broken] == [str(tmp_path / f"{number}.png") for number in ("00", "33", "79")]
    with pytest.raises(ImageFault) as caught:
        unlabelled_folder(str(tmp_path), **settings)
    assert caught.value.faults == broken
    with pytest.raises(ImageFault, match=r"33\.png cannot be read"):
        unlabelled_folder(str(tmp_path / "33.png"), **settings, broken=[])


def test_prediction_reads_one_file_as_training_does(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 4, "b": 4})
    trained = read(tmp_path, image_size=5).train
    path = tmp_path / trained.names[0]
    alone = unlabelled_folder(str(path), image_size=(5, 5), channels=3)
    assert alone.names == (path.name,)
    assert torch.equal(whole(alone.pixels)[0], whole(trained.pixels)[0])


def test_prediction_without_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no image"):
        unlabelled_folder(str(tmp_path), image_size=(4, 6), channels=3)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        unlabelled_folder(str(tmp_path / "x"), image_size=(4, 6), channels=3)


SYNTHETIC: dict[str, Any] = {
    "num_classes": 5,
    "channels": 3,
    "image_size": 8,
    "train_size": 200,
    "val_size": 50,
    "test_size": 101,
    "seed": 0,
}


def test_synthetic_images_are_told_apart_by_the_nearest_mean_of_training() -> None:
    splits = synthetic(**SYNTHETIC)
    assert_well_formed(splits)
    train, test = (whole(part.pixels).flatten(1).double() for part in (splits.train, splits.test))
    means = torch.stack([train[splits.train.targets == label].mean(0) for label in range(5)])
    assert (torch.cdist(test, means).argmin(1) == splits.test.targets).double().mean() > 0.95


def test_synthetic_images_repeat_for_a_seed_and_are_new_in_every_split() -> None:
    first, again, other = (synthetic(**SYNTHETIC | {"seed": seed}) for seed in (0, 0, 1))
    assert same(first.train, again.train)
    assert not torch.equal(whole(first.train.pixels), whole(other.train.pixels))
    everything = torch.cat([whole(first.train.pixels), whole(first.val.pixels), whole(first.test.pixels)]).flatten(1)
    assert len(everything.unique(dim=0)) == len(everything)

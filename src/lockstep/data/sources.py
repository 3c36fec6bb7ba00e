"""Data sets as whole uint8 tensors, read once and cut by a fixed seed, so that a batch is one gather."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torchvision.datasets import CIFAR10, FashionMNIST
from torchvision.transforms.v2 import functional as F

from lockstep.parallel.randomness import generator

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
SPLIT_FOLDERS = ("train", "val", "test")
T = TypeVar("T", FashionMNIST, CIFAR10)


@dataclass(frozen=True, eq=False)
class Images:
    """`pixels` uint8 (N, C, H, W); `labels` int64 (N,), -1: unknown; `names`: paths below the root, or "test/17"."""

    pixels: Tensor
    labels: Tensor
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Splits:
    """Disjoint parts of one data set; `class_names[label]` names a label in each of them."""

    train: Images
    val: Images
    test: Images
    class_names: tuple[str, ...]


def digits(*, val_fraction: float, test_fraction: float, split_seed: int) -> Splits:
    """1,797 real handwritten digits, 8x8 grey, that come with scikit-learn: no network, no files."""
    from sklearn.datasets import load_digits  # 0.6 s that only this source needs

    images, labels = load_digits(return_X_y=True)
    # Values are 0..16, so 255 / 16 uses the whole range of uint8.
    pixels = torch.from_numpy((images * 255 / 16).round().astype(np.uint8)).view(-1, 1, 8, 8)
    targets = torch.from_numpy(labels).long()
    parts = _cut(len(pixels), split_seed, {"val_fraction": val_fraction, "test_fraction": test_fraction})
    val, test, train = (_take(pixels, targets, "digits", part) for part in parts)
    return Splits(train, val, test, tuple(str(digit) for digit in range(10)))


def fashion_mnist(*, root: str, download: bool, val_fraction: float, split_seed: int) -> Splits:
    """Fashion-MNIST (Xiao et al. 2017), 28x28 grey: val is cut off torchvision's training set, test is its test set."""
    train, test = _from_torchvision(FashionMNIST, root, download, "FashionMNIST/raw")
    return _with_val(
        (train.data.unsqueeze(1), train.targets),
        (test.data.unsqueeze(1), test.targets),
        val_fraction,
        split_seed,
        train.classes,
    )


def cifar10(*, root: str, download: bool, val_fraction: float, split_seed: int) -> Splits:
    """CIFAR-10 (Krizhevsky 2009), 32x32 colour: val is cut off torchvision's training set, test is its test set."""
    train, test = _from_torchvision(CIFAR10, root, download, CIFAR10.base_folder)

    def tensors(part: CIFAR10) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(part.data).permute(0, 3, 1, 2), torch.tensor(part.targets)

    return _with_val(tensors(train), tensors(test), val_fraction, split_seed, train.classes)


def image_folder(
    *,
    root: str,
    image_size: int | None,
    channels: int,
    val_fraction: float,
    test_fraction: float,
    split_seed: int,
) -> Splits:
    """Images in folders named after their classes, decoded once into memory.

    Either `root/{train,val,test}/<class>/`, where val and test may be missing and are then cut off train, or
    `root/<class>/`, cut three ways. A folder wins over its fraction. `image_size` scales the shorter side and crops the
    centre; null takes images that all have one size. `channels` is 1 (grey) or 3 (RGB).
    """
    _check_channels(channels)
    folder = _existing(root, f"data.root={root}")
    parts = _split_folders(root, folder)
    files = {name: _files_by_class(root, part) for name, part in parts.items()}
    classes = tuple(files["train"])
    _check_classes(root, files)

    listed = {
        name: [(path, classes.index(label)) for label, paths in by_class.items() for path in paths]
        for name, by_class in files.items()
    }
    _cut_missing(root, listed, {"val": val_fraction, "test": test_fraction}, split_seed)
    in_order = [item for name in SPLIT_FOLDERS for item in listed[name]]
    paths = [path for path, _ in in_order]
    size = (image_size, image_size) if image_size is not None else _size(_decode(paths[0], channels))
    pixels = _read(f"data.root={root}", paths, channels, size, same_size=image_size is None)
    labels = torch.tensor([label for _, label in in_order])
    # One tensor and three views of it, so that one message names every broken image.
    lengths = [len(listed[name]) for name in SPLIT_FOLDERS]
    train, val, test = (
        Images(part, part_labels, tuple(path.relative_to(folder).as_posix() for path, _ in listed[name]))
        for name, part, part_labels in zip(SPLIT_FOLDERS, pixels.split(lengths), labels.split(lengths), strict=True)
    )
    return Splits(train, val, test, classes)


def unlabelled_folder(root: str, *, image_size: tuple[int, int], channels: int) -> Images:
    """Read every image below a folder in sorted order, or one image file, scaled and cropped to `image_size` (H, W).

    The geometry is that of `image_folder`: a model sees the same pixels of a file in training and here. Labels are -1.
    """
    _check_channels(channels)
    path = _existing(root, root)
    files = _image_files(path) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"{root} holds no image: looked for {', '.join(IMAGE_SUFFIXES)} in it and below.")
    base = path if path.is_dir() else path.parent
    names = tuple(file.relative_to(base).as_posix() for file in files)
    return Images(_read(root, files, channels, image_size, same_size=False), torch.full((len(files),), -1), names)


def synthetic(
    *,
    num_classes: int,
    channels: int,
    image_size: int,
    train_size: int,
    val_size: int,
    test_size: int,
    seed: int,
) -> Splits:
    """Make learnable images: one smooth pattern per class (0..159) plus uniform noise (0..95) of each split's own."""
    coarse = torch.rand(num_classes, channels, 4, 4, generator=generator(seed, "patterns"))
    smooth = F.resize(coarse, [image_size, image_size], antialias=True)
    patterns = (smooth * 160).clamp(0, 159).to(torch.uint8)

    def part(name: str, count: int) -> Images:
        labels = torch.arange(count) % num_classes
        shape = (count, channels, image_size, image_size)
        noise = torch.randint(0, 96, shape, dtype=torch.uint8, generator=generator(seed, name))
        return Images(patterns[labels] + noise, labels, tuple(f"{name}/{i}" for i in range(count)))

    classes = tuple(f"class {label}" for label in range(num_classes))
    return Splits(part("train", train_size), part("val", val_size), part("test", test_size), classes)


def _cut(count: int, seed: int, fractions: dict[str, float]) -> list[Tensor]:
    """Cut positions 0..count-1 into round(count * fraction) for each fraction, then the rest; disjoint, each sorted."""
    sizes = {name: round(count * fraction) for name, fraction in fractions.items()}
    for name, size in sizes.items():
        if not 0 < size < count:
            raise ValueError(
                f"data.{name}={fractions[name]} of {count} images makes a split of {size}: use a fraction that leaves "
                "at least one image in every split."
            )
    rest = count - sum(sizes.values())
    if rest < 1:
        asked = " and ".join(f"data.{name}={fraction}" for name, fraction in fractions.items())
        raise ValueError(f"{asked} of {count} images leave none for training: use smaller fractions.")
    order = torch.randperm(count, generator=generator(seed, "split"))
    return [part.sort().values for part in order.split([*sizes.values(), rest])]


def _cut_missing(
    root: str, listed: dict[str, list[tuple[Path, int]]], fractions: dict[str, float], split_seed: int
) -> None:
    """Give `listed` the splits it has not, cut off its "train" by their `fractions`."""
    missing = {name: fraction for name, fraction in fractions.items() if name not in listed}
    for name, fraction in missing.items():
        if fraction == 0:
            raise ValueError(
                f'data.root={root} has no folder "{name}" and data.{name}_fraction=0: '
                f"add {name}/ with one folder per class, or set data.{name}_fraction=0.1 to cut it off train."
            )
    everything = listed["train"]
    cuts = _cut(len(everything), split_seed, {f"{name}_fraction": fraction for name, fraction in missing.items()})
    for name, positions in zip([*missing, "train"], cuts, strict=True):
        listed[name] = [everything[position] for position in positions.tolist()]


def _take(pixels: Tensor, labels: Tensor, prefix: str, positions: Tensor) -> Images:
    return Images(pixels[positions], labels[positions], tuple(f"{prefix}/{i}" for i in positions.tolist()))


def _with_val(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    val_fraction: float,
    split_seed: int,
    class_names: Sequence[str],
) -> Splits:
    val_positions, train_positions = _cut(len(train[0]), split_seed, {"val_fraction": val_fraction})
    return Splits(
        train=_take(*train, "train", train_positions),
        val=_take(*train, "train", val_positions),
        test=_take(*test, "test", torch.arange(len(test[0]))),
        class_names=tuple(class_names),
    )


def _from_torchvision(dataset: type[T], root: str, download: bool, folder: str) -> tuple[T, T]:
    try:
        # torchvision draws its download bar on stderr and has no switch for it.
        with redirect_stderr(StringIO()):
            return dataset(root, train=True, download=download), dataset(root, train=False, download=download)
    # Absent files and no network: RuntimeError, URLError (an OSError). Damaged files: also ValueError.
    except (RuntimeError, OSError, ValueError) as error:
        cure = (
            "check the network, or copy the files there"
            if download
            else "set data.download=true, or copy the files there"
        )
        raise FileNotFoundError(
            f"data.root={root} has no readable {dataset.__name__}: looked for {Path(root) / folder} "
            f"with data.download={str(download).lower()} ({' '.join(str(error).split())}). "
            f"Please {cure}; delete damaged files first."
        ) from error


def _existing(root: str, asked: str) -> Path:
    path = Path(root).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{asked} does not exist (from {Path.cwd()}): correct the path.")
    return path


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _image_files(folder: Path) -> list[Path]:
    """Images below `folder` in sorted order. Hidden files are left out: macOS writes a "._x.jpg" beside each x.jpg."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def _split_folders(root: str, folder: Path) -> dict[str, Path]:
    """Find the folders of class folders: train, val and test where they exist, else the root itself as "train"."""
    parts = {name: folder / name for name in SPLIT_FOLDERS if (folder / name).is_dir()}
    # A folder "train" without folders in it is a class of trains.
    if not any(map(_subfolders, parts.values())):
        return {"train": folder}
    if "train" not in parts:
        raise FileNotFoundError(
            f'data.root={root} has "{next(iter(parts))}" but no folder "train": add it, with one folder per class.'
        )
    strangers = [path.name for path in _subfolders(folder) if path.name not in SPLIT_FOLDERS]
    if strangers:
        raise ValueError(
            f"data.root={root} has folders beside train/ that nothing reads: {', '.join(strangers)}. "
            "Only train/, val/ and test/ are read: rename or move the others."
        )
    return parts


def _files_by_class(root: str, folder: Path) -> dict[str, list[Path]]:
    files = {path.name: _image_files(path) for path in _subfolders(folder)}
    if not files:
        raise FileNotFoundError(
            f"data.root={root} has no class folders in {folder}: looked for train/, val/ or test/ with one folder per "
            "class, or one folder per class."
        )
    empty = [str(folder / name) for name, paths in files.items() if not paths]
    if empty:
        raise ValueError(
            f"data.root={root} has class folders without an image ({', '.join(IMAGE_SUFFIXES)}): {', '.join(empty)}. "
            "Add images or delete the folders."
        )
    return files


def _check_classes(root: str, files: dict[str, dict[str, list[Path]]]) -> None:
    train = files["train"]
    if len(train) < 2:
        raise ValueError(
            f"data.root={root} has one class only, {', '.join(train)}: add the other classes, or give the folder that "
            "holds one folder per class."
        )
    for name, by_class in files.items():
        missing, extra = sorted(train.keys() - by_class.keys()), sorted(by_class.keys() - train.keys())
        if missing or extra:
            raise ValueError(
                f"data.root={root} has {len(train)} classes in train/ but {len(by_class)} in {name}/: only in train/: "
                f"{', '.join(missing) or 'none'}; only in {name}/: {', '.join(extra) or 'none'}. "
                "Give both the same class folders."
            )


def _available_bytes() -> int | None:
    """Memory that Linux can hand out now, page cache included (SC_AVPHYS_PAGES leaves that out); None elsewhere."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    kib = {line.split(":")[0]: line.split()[1] for line in meminfo.read_text().splitlines()}
    return int(kib["MemAvailable"]) * 1024


def _check_memory(asked: str, needed: int) -> None:
    available = _available_bytes()
    if available is not None and needed > available:
        raise ValueError(
            f"{asked} needs {needed / 2**30:.1f} GiB of memory when decoded, but this machine has "
            f"{available / 2**30:.1f} GiB left: set a smaller data.image_size, or give fewer images."
        )


def _size(image: Tensor) -> tuple[int, int]:
    return image.shape[-2], image.shape[-1]


def _check_channels(channels: int) -> None:
    if channels not in (1, 3):
        raise ValueError(f"data.channels={channels}, but images are decoded as grey (1) or RGB (3): use 1 or 3.")


def _decode(path: Path, channels: int) -> Tensor:
    """One image as uint8 (C, H, W), upright, transparency dropped, 16 bits cut to 8.

    By Pillow, because torchvision's own decoders are deprecated since 0.29; the RGB pixels are the same.
    """
    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file)
            if image.mode.startswith("I;16"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            elif image.mode in ("I", "F"):
                raise ValueError(f"32-bit pixels (mode {image.mode})")
            elif image.mode == "P" and "transparency" in image.info:
                image = image.convert("RGBA")  # straight to RGB, Pillow warns
            pixels = np.array(image.convert("L" if channels == 1 else "RGB"))
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else error
        raise ValueError(f"image {path} cannot be read ({reason}): replace or delete it.") from error
    return torch.from_numpy(pixels).view(*pixels.shape[:2], channels).permute(2, 0, 1)


def _fit(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Scale `image` until it just covers `size` (H, W), with antialias, then crop the centre."""
    (height, width), (new_height, new_width) = _size(image), size
    if new_height * width > new_width * height:
        scaled = [new_height, width * new_height // height]
    else:
        scaled = [height * new_width // width, new_width]
    return F.center_crop(F.resize(image, scaled, antialias=True), list(size))


def _read(asked: str, files: Sequence[Path], channels: int, size: tuple[int, int], *, same_size: bool) -> Tensor:
    """Decode `files` into one tensor (N, C, H, W), fitted to `size`, or refused when `same_size` and one differs."""
    _check_memory(asked, len(files) * channels * size[0] * size[1])
    pixels = torch.empty(len(files), channels, *size, dtype=torch.uint8)

    def fill(index: int) -> str | None:
        try:
            image = _decode(files[index], channels)
        except ValueError as error:
            return str(error)
        if same_size and _size(image) != size:
            raise ValueError(
                f"data.image_size=null takes images of one size, but {files[0]} has {size[0]}x{size[1]} (HxW) and "
                f"{files[index]} has {image.shape[1]}x{image.shape[2]}: set data.image_size, e.g. {min(size)}."
            )
        pixels[index] = _fit(image, size)
        return None

    def fill_run(start: int) -> list[str]:
        return [fault for index in range(start, min(start + 32, len(files))) if (fault := fill(index))]

    # As many threads as torch may use on this rank, each without threads of its own. One for small files, where two
    # wait for the interpreter lock (2 CPU cores, 2026-11-21: 32x32 at 9,000 images/s by one thread, 5,000 by two;
    # 500x500 at 550 and 850).
    num_threads = torch.get_num_threads() if files[0].stat().st_size > 16 * 1024 else 1
    with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        faults = [fault for run in pool.map(fill_run, range(0, len(files), 32)) for fault in run]
    if faults:
        more = [f"... and {len(faults) - 10} more"] if len(faults) > 10 else []
        raise ValueError("\n".join([*faults[:10], *more]))
    return pixels

"""Provide handwritten digits, random images, and data sets that torchvision downloads."""

from contextlib import redirect_stderr
from importlib.metadata import distribution
from io import StringIO
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor
from typing_extensions import Doc

from lockstep.data.sources import FOLDERS
from lockstep.data.splits import Fold, Images, Splits, rounded_sizes
from lockstep.distributed.rng import generator
from lockstep.system.types import (
    Channels,
    FilesRoot,
    ImageSize,
    Positive,
    PositiveFraction,
    Seed,
    SplitSeed,
)


def digits(
    *,
    val_fraction: Annotated[
        PositiveFraction, Doc("fraction of the training images to use for validation")
    ],
    test_fraction: Annotated[PositiveFraction, Doc("fraction of all images to use for the test")],
    split_seed: SplitSeed,
    fold: Fold | None = None,
) -> Splits:
    """Load 1,797 handwritten digits of 10 classes, (1, 8, 8), from scikit-learn without a download.

    `split_seed` selects round(1797 * fraction) images for val and test, and the rest is for
    training. A `fold` of all images takes the place of the test. Raises ValueError if a split is
    empty.
    """
    # The file is read directly, because importing sklearn.datasets takes 0.6 s.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = torch.from_numpy(np.loadtxt(str(file), np.uint8, delimiter=","))
    # Values of 0 to 16 are scaled to 0 to 255.
    pixels = (table[:, :-1] * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)
    targets = table[:, -1].long()
    fractions = {"val": val_fraction, "test": test_fraction}
    positions = split_at_random(targets, split_seed, fractions, fold)
    images = named_images(pixels, targets, "digits")
    train, val, test = (images.take(positions[split]) for split in ("train", "val", "test"))
    return Splits(train, val, test, tuple(map(str, range(10))))


def synthetic(
    *,
    num_classes: Annotated[Positive, Ge(2), Doc("number of classes")],
    channels: Channels,
    image_size: Annotated[Positive, Ge(4), Doc("side of the square images in pixels")],
    train_size: Annotated[Positive, Doc("number of training images")],
    val_size: Annotated[Positive, Doc("number of validation images")],
    test_size: Annotated[Positive, Doc("number of test images")],
    seed: Annotated[Seed, Doc("seed of the patterns")],
) -> Splits:
    """Make random images that a network can learn, for tests and for measuring speed.

    An image (channels, image_size, image_size) is the smooth pattern of its class, with values of 0
    to 159, plus uniform noise of 0 to 95. The noise differs between splits. Image i of a split has
    the label i modulo `num_classes`.
    """
    from lockstep.data.images.preprocessing import resize

    coarse = torch.rand(num_classes, channels, 4, 4, generator=generator(seed, "patterns"))
    smooth = resize(coarse, [image_size, image_size])
    patterns = (smooth * 160).clamp(0, 159).to(torch.uint8)

    def make_images(split: str, count: int) -> Images:
        labels = torch.arange(count) % num_classes
        shape = (count, channels, image_size, image_size)
        noise = torch.randint(0, 96, shape, dtype=torch.uint8, generator=generator(seed, split))
        return named_images(patterns[labels] + noise, labels, split)

    return Splits(
        make_images("train", train_size),
        make_images("val", val_size),
        make_images("test", test_size),
        tuple(f"class {label}" for label in range(num_classes)),
    )


def fashion_mnist(
    *,
    root: FilesRoot,
    download: Annotated[bool, Doc("download missing files")],
    val_fraction: Annotated[
        PositiveFraction, Doc("fraction of the training images to use for validation")
    ],
    split_seed: SplitSeed,
    image_size: ImageSize = None,
    fold: Fold | None = None,
) -> Splits:
    """Load Fashion-MNIST (Xiao et al. 2017), 70,000 images of clothes of 10 classes, (1, 28, 28).

    test is its test set of 10,000 images, or a `fold` of its training set of 60,000. val is split
    from the training set. Images are scaled to `image_size` as by `image_folder`. Raises
    FileNotFoundError for missing or damaged files, and ValueError if a split is empty.
    """
    from torchvision.datasets import FashionMNIST

    datasets = _torchvision_datasets(FashionMNIST, "lockstep.data.fashion_mnist", root, download)
    return _torchvision_splits(datasets, val_fraction, split_seed, image_size, fold)


def cifar10(
    *,
    root: FilesRoot,
    download: Annotated[bool, Doc("download missing files")],
    val_fraction: Annotated[
        PositiveFraction, Doc("fraction of the training images to use for validation")
    ],
    split_seed: SplitSeed,
    image_size: ImageSize = None,
    fold: Fold | None = None,
) -> Splits:
    """Load CIFAR-10 (Krizhevsky 2009), 60,000 images of 10 classes, (3, 32, 32).

    test is its test set of 10,000 images, or a `fold` of its training set of 50,000. val is split
    from the training set. Images are scaled to `image_size` as by `image_folder`. Raises
    FileNotFoundError for missing or damaged files, and ValueError if a split is empty.
    """
    from torchvision.datasets import CIFAR10

    datasets = _torchvision_datasets(CIFAR10, "lockstep.data.cifar10", root, download)
    return _torchvision_splits(datasets, val_fraction, split_seed, image_size, fold)


def _torchvision_datasets(kind: Any, target: str, root: str, download: bool) -> dict[str, Any]:
    """Return the training and the test set of a data set of torchvision.

    Raises FileNotFoundError.
    """
    try:
        # torchvision has no option to disable its progress bar on stderr.
        with redirect_stderr(StringIO()):
            return {
                split: kind(root, train=split == "train", download=download)
                for split in ("train", "test")
            }
    # Missing files without a network raise RuntimeError or URLError, which is an OSError. Damaged
    # files can also raise ValueError.
    except (RuntimeError, OSError, ValueError) as error:
        hint = "check the network" if download else "set data.download=true"
        raise FileNotFoundError(
            f"data.root={root} has no readable {kind.__name__} in {FOLDERS[target]} "
            f"({' '.join(str(error).split())}): delete damaged files, and {hint} or copy them."
        ) from error


def _torchvision_splits(
    datasets: dict[str, Any],
    val_fraction: float,
    split_seed: int,
    image_size: int | list[int] | None,
    fold: Fold | None,
) -> Splits:
    """Split data sets of torchvision, whose pixels are (N, H, W) or (N, H, W, C)."""
    from lockstep.data.images.preprocessing import Preprocessing

    preprocessing = Preprocessing.from_keys(image_size, "auto", "crop", "auto", "white")
    images: dict[str, Images] = {}
    for split, dataset in datasets.items():
        pixels, targets = torch.as_tensor(dataset.data), torch.as_tensor(dataset.targets)
        pixels = pixels.permute(0, 3, 1, 2) if pixels.dim() == 4 else pixels.unsqueeze(1)
        images[split] = named_images(preprocessing(pixels), targets, split)
    train = images["train"]
    positions = split_at_random(train.targets, split_seed, {"val": val_fraction}, fold)
    images |= {split: train.take(rows) for split, rows in positions.items()}
    return Splits(images["train"], images["val"], images["test"], tuple(datasets["train"].classes))


def named_images(pixels: Tensor, labels: Tensor, prefix: str) -> Images:
    return Images(pixels, labels, tuple(f"{prefix}/{i}" for i in range(len(labels))))


def split_at_random(
    classes: Tensor, seed: int, fractions: dict[str, float], fold: Fold | None
) -> dict[str, Tensor]:
    """Split positions at random into round(n * fraction) for each of `fractions`, and the rest.

    The rest is "train", and each split is sorted. A `fold` is "test", and the other positions are
    split. Raises ValueError if a split is empty.
    """
    splits, rest = {}, torch.arange(len(classes))
    if fold is not None:
        from lockstep.data.splitting import Unsplit, split_images

        images = Unsplit(list(map(str, rest.tolist())), classes.numpy(), seed)
        rows = split_images(images, {}, fold)
        splits["test"] = torch.from_numpy(rows["test"])
        rest = torch.from_numpy(rows["train"])
        fractions = {split: fractions[split] for split in fractions if split != "test"}
    order = torch.randperm(len(rest), generator=generator(seed, "split"))
    draws = order.split(rounded_sizes(len(rest), fractions))
    for split, positions in zip([*fractions, "train"], draws, strict=True):
        splits[split] = rest[positions.sort().values]
    return splits

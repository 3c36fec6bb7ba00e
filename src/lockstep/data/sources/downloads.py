"""Provide data sets that torchvision downloads, as uint8 tensors, split by a fixed seed."""

from contextlib import redirect_stderr
from io import StringIO
from typing import Annotated, Any

import torch
from typing_extensions import Doc

from lockstep.data.images.preprocessing import Preprocessing
from lockstep.data.sources import FOLDERS
from lockstep.data.sources.builtin import split_at_random, take_images
from lockstep.data.splits import Fold, Splits
from lockstep.system.types import FilesRoot, ImageSize, PositiveFraction, SplitSeed


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

    return _torchvision_splits(
        FashionMNIST,
        "lockstep.data.fashion_mnist",
        root,
        download,
        val_fraction,
        split_seed,
        image_size,
        fold,
    )


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

    return _torchvision_splits(
        CIFAR10,
        "lockstep.data.cifar10",
        root,
        download,
        val_fraction,
        split_seed,
        image_size,
        fold,
    )


def _torchvision_splits(
    kind: Any,
    target: str,
    root: str,
    download: bool,
    val_fraction: float,
    split_seed: int,
    image_size: int | list[int] | None,
    fold: Fold | None,
) -> Splits:
    """Read a data set of torchvision, whose pixels are (N, H, W) or (N, H, W, C).

    Raises FileNotFoundError.
    """
    try:
        # torchvision has no option to disable its progress bar on stderr.
        with redirect_stderr(StringIO()):
            datasets = [kind(root, train=is_train, download=download) for is_train in (True, False)]
    # Missing files without a network raise RuntimeError or URLError, which is an OSError. Damaged
    # files can also raise ValueError.
    except (RuntimeError, OSError, ValueError) as error:
        hint = (
            "delete damaged files, and "
            f"{'check the network' if download else 'set data.download=true'} or copy them"
        )
        problem = (
            f"has no readable {kind.__name__} in {FOLDERS[target]} ({' '.join(str(error).split())})"
        )
        raise FileNotFoundError(f"data.root={root} {problem}: {hint}.") from error
    pixels = [torch.as_tensor(dataset.data) for dataset in datasets]
    preprocessing = Preprocessing.from_keys(image_size, "auto", "crop", "auto", "white")
    train, test = (
        preprocessing(images.permute(0, 3, 1, 2) if images.dim() == 4 else images.unsqueeze(1))
        for images in pixels
    )
    targets = [torch.as_tensor(dataset.targets) for dataset in datasets]
    rows = split_at_random(targets[0], split_seed, {"val": val_fraction}, fold)
    splits = {"test": take_images(test, targets[1], "test", torch.arange(len(test)))}
    splits |= {
        split: take_images(train, targets[0], "train", positions)
        for split, positions in rows.items()
    }
    return Splits(splits["train"], splits["val"], splits["test"], tuple(datasets[0].classes))

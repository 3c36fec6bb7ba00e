"""Data sets as uint8 tensors, cut into splits by a fixed seed."""

from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor
from typing_extensions import Doc

from lockstep.data.images.splits import Fold, Images, Splits, cut_splits
from lockstep.data.sources import FOLDERS
from lockstep.distributed.rng import generator
from lockstep.system.kinds import Channels, FilesRoot, Positive, PositiveFraction, Seed, SplitSeed


def digits(
    *,
    val_fraction: Annotated[PositiveFraction, Doc("fraction of the training images to use for validation")],
    test_fraction: Annotated[PositiveFraction, Doc("fraction of all images to use for the test")],
    split_seed: SplitSeed,
    fold: Fold | None = None,
) -> Splits:
    """1,797 handwritten digits of 10 classes, (1, 8, 8), which are part of scikit-learn: no download.

    `split_seed` selects round(1797 * fraction) images for val and test; the rest is for training. A `fold` of all
    images takes the place of the test. Raises ValueError if a split is empty.
    """
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    # read as a file: importing sklearn.datasets takes 0.6 s
    rows = np.loadtxt(Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz", np.uint8, delimiter=",")
    # values 0..16 are scaled to 0..255
    pixels = torch.from_numpy((rows[:, :-1] * (255 / 16)).round().astype(np.uint8)).view(-1, 1, 8, 8)
    targets = torch.from_numpy(rows[:, -1]).long()
    fractions = {"val_fraction": val_fraction, "test_fraction": test_fraction}
    parts = cut_splits(targets, split_seed, fractions, fold)
    splits = {name: _take(pixels, targets, "digits", part) for name, part in parts.items()}
    return Splits(splits["train"], splits["val"], splits["test"], tuple(str(digit) for digit in range(10)))


def fashion_mnist(
    *,
    root: FilesRoot,
    download: Annotated[bool, Doc("download missing files")],
    val_fraction: Annotated[PositiveFraction, Doc("fraction of the training images to use for validation")],
    split_seed: SplitSeed,
    fold: Fold | None = None,
) -> Splits:
    """Fashion-MNIST (Xiao et al. 2017): 70,000 images of clothes of 10 classes, (1, 28, 28).

    test is its test set of 10,000, or a `fold` of its training set of 60,000, from which val is split. Raises
    FileNotFoundError for missing or damaged files, and ValueError if a split is empty.
    """
    from torchvision.datasets import FashionMNIST

    return _torchvision_splits(
        FashionMNIST, "lockstep.data.fashion_mnist", root, download, val_fraction, split_seed, fold
    )


def cifar10(
    *,
    root: FilesRoot,
    download: Annotated[bool, Doc("download missing files")],
    val_fraction: Annotated[PositiveFraction, Doc("fraction of the training images to use for validation")],
    split_seed: SplitSeed,
    fold: Fold | None = None,
) -> Splits:
    """CIFAR-10 (Krizhevsky 2009): 60,000 photographs of 10 classes, (3, 32, 32).

    test is its test set of 10,000, or a `fold` of its training set of 50,000, from which val is split. Raises
    FileNotFoundError for missing or damaged files, and ValueError if a split is empty.
    """
    from torchvision.datasets import CIFAR10

    return _torchvision_splits(CIFAR10, "lockstep.data.cifar10", root, download, val_fraction, split_seed, fold)


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
    """Learnable random images, for tests and for measuring speed.

    An image (channels, image_size, image_size) is the smooth pattern of its class, with values 0..159, plus uniform
    noise 0..95, which differs between splits. Image i of a split has the label i modulo `num_classes`.
    """
    from lockstep.data.images.preprocessing import resize

    coarse = torch.rand(num_classes, channels, 4, 4, generator=generator(seed, "patterns"))
    smooth = resize(coarse, [image_size, image_size])
    patterns = (smooth * 160).clamp(0, 159).to(torch.uint8)

    def part(name: str, count: int) -> Images:
        labels = torch.arange(count) % num_classes
        shape = (count, channels, image_size, image_size)
        noise = torch.randint(0, 96, shape, dtype=torch.uint8, generator=generator(seed, name))
        return Images(patterns[labels] + noise, labels, tuple(f"{name}/{i}" for i in range(count)))

    classes = tuple(f"class {label}" for label in range(num_classes))
    return Splits(part("train", train_size), part("val", val_size), part("test", test_size), classes)


def _take(pixels: Tensor, labels: Tensor, prefix: str, positions: Tensor) -> Images:
    return Images(pixels[positions], labels[positions], tuple(f"{prefix}/{i}" for i in positions.tolist()))


def _torchvision_splits(
    kind: Any, target: str, root: str, download: bool, val_fraction: float, split_seed: int, fold: Fold | None
) -> Splits:
    """Read a data set of torchvision, whose pixels are (N, H, W) or (N, H, W, C). Raises FileNotFoundError."""
    try:
        # torchvision has no switch for its progress bar on stderr
        with redirect_stderr(StringIO()):
            parts = [kind(root, train=is_train, download=download) for is_train in (True, False)]
    # missing files and no network: RuntimeError, URLError (an OSError); damaged files: also ValueError
    except (RuntimeError, OSError, ValueError) as error:
        hint = "check the network" if download else "set data.download=true"
        problem = f"has no readable {kind.__name__} in {FOLDERS[target]} ({' '.join(str(error).split())})"
        raise FileNotFoundError(
            f"data.root={root} {problem}: delete damaged files, and {hint} or copy them."
        ) from error
    pixels = [torch.as_tensor(part.data) for part in parts]
    train, test = (images.permute(0, 3, 1, 2) if images.dim() == 4 else images.unsqueeze(1) for images in pixels)
    targets = [torch.as_tensor(part.targets) for part in parts]
    cuts = cut_splits(targets[0], split_seed, {"val_fraction": val_fraction}, fold)
    splits = {"test": _take(test, targets[1], "test", torch.arange(len(test)))}
    splits |= {name: _take(train, targets[0], "train", part) for name, part in cuts.items()}
    return Splits(splits["train"], splits["val"], splits["test"], tuple(parts[0].classes))

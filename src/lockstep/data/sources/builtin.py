"""Provide data sets that need no files, namely handwritten digits and random images."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor
from typing_extensions import Doc

from lockstep.data.splits import Fold, Images, Splits, rounded_sizes
from lockstep.distributed.rng import generator
from lockstep.system.types import Channels, Positive, PositiveFraction, Seed, SplitSeed


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
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    # The file is read directly, because importing sklearn.datasets takes 0.6 s.
    rows = np.loadtxt(
        Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz",
        np.uint8,
        delimiter=",",
    )
    # Values of 0 to 16 are scaled to 0 to 255.
    pixels = torch.from_numpy((rows[:, :-1] * (255 / 16)).round().astype(np.uint8)).view(
        -1, 1, 8, 8
    )
    targets = torch.from_numpy(rows[:, -1]).long()
    fractions = {"val": val_fraction, "test": test_fraction}
    positions_by_split = split_at_random(targets, split_seed, fractions, fold)
    splits = {
        split: take_images(pixels, targets, "digits", positions)
        for split, positions in positions_by_split.items()
    }
    return Splits(
        splits["train"], splits["val"], splits["test"], tuple(str(digit) for digit in range(10))
    )


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
        return Images(patterns[labels] + noise, labels, tuple(f"{split}/{i}" for i in range(count)))

    classes = tuple(f"class {label}" for label in range(num_classes))
    return Splits(
        make_images("train", train_size),
        make_images("val", val_size),
        make_images("test", test_size),
        classes,
    )


def take_images(pixels: Tensor, labels: Tensor, prefix: str, positions: Tensor) -> Images:
    return Images(
        pixels[positions], labels[positions], tuple(f"{prefix}/{i}" for i in positions.tolist())
    )


def split_at_random(
    classes: Tensor, seed: int, fractions: dict[str, float], fold: Fold | None = None
) -> dict[str, Tensor]:
    """Split positions at random into round(n * fraction) for each of `fractions`, and the rest.

    The rest is "train", and each split is sorted. A `fold` is "test", and the other positions are
    split. Raises ValueError if a split is empty.
    """
    splits, rest = dict[str, Tensor](), torch.arange(len(classes))
    if fold is not None:
        from lockstep.data.splitting import Unsplit, split_images

        images = Unsplit([*map(str, rest.tolist())], classes.numpy(), seed)
        rows = split_images(images, {}, fold)
        rest, splits["test"] = torch.from_numpy(rows["train"]), torch.from_numpy(rows["test"])
        fractions = {split: fraction for split, fraction in fractions.items() if split != "test"}
    order = torch.randperm(len(rest), generator=generator(seed, "split"))
    draws = order.split(rounded_sizes(len(rest), fractions))
    for split, positions in zip([*fractions, "train"], draws, strict=True):
        splits[split] = rest[positions.sort().values]
    return splits

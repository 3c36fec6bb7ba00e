"""The images: scikit-learn's handwritten digits, until you replace them."""

from typing import Any, cast

import torch
from sklearn.datasets import load_digits  # pyright: ignore[reportMissingTypeStubs]

from lockstep.data import Images, Splits


def images(*, seed: int) -> Splits:
    """Split 1,797 gray images at random: pixels uint8 (N, 1, 8, 8), class numbers int64 (N,)."""
    digits = cast(Any, load_digits())  # scikit-learn has no types
    pixels = torch.tensor(15 * digits.images, dtype=torch.uint8).unsqueeze(1)
    targets = torch.tensor(digits.target)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))
    split_rows = torch.split(order, [1257, 180, 360])
    train, val, test = (
        Images(pixels[rows], targets[rows], [str(int(row)) for row in rows]) for rows in split_rows
    )
    return Splits(train, val, test, class_names=tuple(map(str, range(10))))

"""The images: scikit-learn's handwritten digits, until you replace them."""

import torch
from sklearn.datasets import load_digits

from lockstep.data import Images, Splits


def images(*, seed: int) -> Splits:
    """1,797 grey images of 8x8 pixels, uint8 (N, 1, 8, 8), split at random; targets are class numbers int64 (N,)."""
    pixels, targets = (torch.from_numpy(values) for values in load_digits(return_X_y=True))
    pixels = (pixels * 15).to(torch.uint8).view(-1, 1, 8, 8)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))
    parts = order.split([1257, 180, 360])
    train, val, test = (Images(pixels[rows], targets[rows], [str(row) for row in rows.tolist()]) for rows in parts)
    return Splits(train, val, test, class_names=tuple(map(str, range(10))))

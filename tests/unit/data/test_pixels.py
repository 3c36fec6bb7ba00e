"""The images of a split: pixels, targets and names must match."""

from typing import Any

import pytest
import torch

from lockstep.data import Images


class Packed:
    shape = (2, 1, 4, 4)


PIXELS = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("pixels", "num_targets", "num_names", "line"),
    [
        (
            Packed(),
            2,
            2,
            r"\(Packed\) are not a tensor: give one, or a torch Dataset to data=dataset",
        ),
        (PIXELS.int(), 3, 3, r"the pixels are int32: make them uint8 of 0 to 255, or floats\."),
        (PIXELS[0], 1, 1, r"the pixels have the shape \(1, 4, 4\): make them \(N, C, H, W\)\."),
        (
            torch.zeros(3, 8, 8, 1, dtype=torch.uint8),
            3,
            3,
            r"\(3, 8, 8, 1\): make them \(N, C, H, W\)",
        ),
        (
            PIXELS,
            2,
            3,
            r"there are 3 pixels, 2 targets, 3 names: give one of each for every image\.",
        ),
    ],
)
def test_inconsistent_images_refused(
    pixels: Any, num_targets: int, num_names: int, line: str
) -> None:
    with pytest.raises(ValueError, match=rf"^Images: .*{line}"):
        Images(pixels, torch.zeros(num_targets), [str(number) for number in range(num_names)])


def test_patches_of_many_channels() -> None:
    patches = torch.zeros(2, 8, 3, 3, dtype=torch.uint8)  # not taken for (N, H, W, C)
    assert Images(patches, torch.zeros(2), ["a", "b"]).pixels.shape == (2, 8, 3, 3)

"""The images of a split: what may hold their pixels, and what is told where it does not fit."""

from typing import Any

import pytest
import torch

from lockstep.data import Images, Pixels
from lockstep.data.images.pixels import Rows, copied, whole
from tests.support.sources import Packed, few_digits, packed_digits


@pytest.mark.parametrize("is_streamed", [True, False])
def test_an_own_format_is_one_that_the_protocol_knows_and_gives_the_pixels_of_its_tensor(is_streamed: bool) -> None:
    own, tensors = packed_digits(is_streamed=is_streamed), few_digits()
    for images, expected in zip(own.parts.values(), tensors.parts.values(), strict=True):
        assert isinstance(images.pixels, Pixels)
        assert torch.equal(whole(images.pixels), whole(expected.pixels))
        assert torch.equal(copied(images.pixels.head(7), torch.device("cpu")), whole(expected.pixels)[:7])
        assert images.pixels[torch.tensor([], dtype=torch.long)].shape == (0, 1, 8, 8)


def test_the_formats_of_lockstep_are_such_formats() -> None:
    table = torch.zeros(4, 3, 2, 2, dtype=torch.uint8)
    assert isinstance(Rows(table, torch.arange(2), "here"), Pixels)


class Half:
    shape = (2, 1, 4, 4)
    reason = "half done"


PIXELS = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("pixels", "num_targets", "num_names", "line"),
    [
        (Half(), 2, 2, r"\(Half\) are no tensor and lack is_streamed, __getitem__, head, which lockstep\.data\.Pixels"),
        (PIXELS.int(), 3, 3, r"the pixels are int32: make them uint8 of 0 to 255, or floats\."),
        (PIXELS[0], 1, 1, r"the pixels have the shape \(1, 4, 4\): make them \(N, C, H, W\)\."),
        (PIXELS, 2, 3, r"there are 3 pixels, 2 targets, 3 names: give one of each for every image\."),
        (Packed((b"",), True), 1, 2, r"there are 1 pixels, 1 targets, 2 names"),
    ],
)
def test_images_that_do_not_fit_each_other_are_refused(
    pixels: Any, num_targets: int, num_names: int, line: str
) -> None:
    with pytest.raises(ValueError, match=rf"^Images: .*{line}"):
        Images(pixels, torch.zeros(num_targets), [str(number) for number in range(num_names)])

"""Images of a custom function that cannot be used."""

from pathlib import Path

import pytest

from tests.support.exact import refusal
from tests.support.recipes import DIGITS, SOURCES, TENSOR

pytestmark = pytest.mark.full


@pytest.mark.processes
@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (
            (f"{SOURCES}.unmeasured",),
            "data._target_=tests.support.sources.unmeasured returns neither pixels nor statistics",
        ),
        (
            (*TENSOR, "+data.memory=stream"),
            "data.memory=stream, but data._target_=",
        ),
        (
            (*TENSOR, "+data.is_float=true", "augment.flip=true"),
            "augment.flip=true, augment.cutout=4 needs uint8 images",
        ),
        (
            (*TENSOR, "augment.crop_padding=8", "augment.crop_border=reflect"),
            "augment.crop_padding=8 reflects more",
        ),
        (
            (*TENSOR, "augment.cutout=9", "augment.cutout_inside=true"),
            "augment.cutout=9 does not fit",
        ),
    ],
    ids=["statistics", "stream", "floats", "reflection", "cutout"],
)
def test_unusable_images_refused(tmp_path: Path, overrides: tuple[str, ...], error: str) -> None:
    assert error in refusal(tmp_path / "run", [*DIGITS, *overrides])

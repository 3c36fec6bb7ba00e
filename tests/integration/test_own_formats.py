"""Images of a custom function that cannot be used."""

from pathlib import Path

import pytest

from lockstep.runs.folder import EXIT_CONFIG
from tests.support.exact import train
from tests.support.harness import write_run
from tests.support.recipes import DIGITS, SOURCES, TENSOR

pytestmark = pytest.mark.full


@pytest.mark.processes
@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            (f"{SOURCES}.unmeasured",),
            "data._target_=tests.support.sources.unmeasured returns neither pixels nor statistics of them: "
            "return Splits(..., statistics=Statistics(mean, std))",
        ),
        (
            (*TENSOR, "+data.memory=stream"),
            "data.memory=stream, but data._target_=tests.support.sources.few_digits does not stream its images: "
            "use data.memory=auto",
        ),
        (
            (*TENSOR, "+data.is_float=true", "augment.flip=true"),
            "augment.flip=true, augment.cutout=4 needs uint8 images, and data._target_=tests.support.sources."
            "few_digits returns floats: remove it, and change the images in the source",
        ),
        (
            (*TENSOR, "augment.crop_padding=8", "augment.crop_border=reflect"),
            "augment.crop_padding=8 reflects more than the images of data._target_=tests.support.sources.few_digits "
            "have: use less than their shorter side, 8",
        ),
        (
            (*TENSOR, "augment.cutout=9", "augment.cutout_inside=true"),
            "augment.cutout=9 does not fit inside the images of data._target_=tests.support.sources.few_digits: "
            "use at most their shorter side, 8",
        ),
    ],
    ids=["statistics", "stream", "floats", "reflection", "cutout"],
)
def test_what_cannot_be_used_ends_the_run_with_one_line(tmp_path: Path, overrides: tuple[str, ...], line: str) -> None:
    folder = write_run(tmp_path / "run", [*DIGITS, *overrides])
    assert train(folder) == EXIT_CONFIG
    text = folder.failure.read_text()
    assert line in text
    assert "Traceback" not in text

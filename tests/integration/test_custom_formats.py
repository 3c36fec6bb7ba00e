"""Images of a custom function that cannot be used."""

from pathlib import Path

import pytest

from tests.support.commands import lockstep, output_of
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
        (
            (
                *TENSOR,
                "+augment.custom.x={_target_:tests.support.transforms.draw_elsewhere,"
                "_partial_:true}",
            ),
            "augment.custom.x changes the same images differently",
        ),
    ],
    ids=["statistics", "stream", "floats", "reflection", "cutout", "transform"],
)
def test_unusable_images_refused(tmp_path: Path, overrides: tuple[str, ...], error: str) -> None:
    assert error in refusal(tmp_path / "run", [*DIGITS, *overrides])


@pytest.mark.processes
def test_evaluated_without_transforms(tmp_path: Path) -> None:
    """An evaluation neither needs nor calls the code of custom transforms."""
    code = tmp_path / "brighter.py"
    code.write_text("def brighter(image):\n    return image + 1\n")
    custom = "+augment.custom.x={_target_:brighter.brighter,_partial_:true}"
    settings = ("data=digits", "model.width=2", "trainer.max_epochs=1", "strategy=cpu")
    output_of(tmp_path, "train", *settings, custom)
    code.unlink()
    assert "calibration: temperature" in output_of(tmp_path, "eval", "latest")
    code.write_text("def brighter(image):\n    return 0\n")
    resumed = lockstep(tmp_path, "train", "resume=outputs/latest", "trainer.max_epochs=2")
    assert resumed.returncode == 2, resumed.stdout
    assert "augment.custom.x returns a int" in resumed.stderr

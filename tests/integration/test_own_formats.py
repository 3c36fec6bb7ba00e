"""Images in a format of the user's own: the same training from where it was cut, and what cannot be used."""

from pathlib import Path

import pytest

from lockstep.runs.folder import EXIT_CONFIG
from tests.support.exact import cut_after, train
from tests.support.harness import difference, write_run
from tests.support.recipes import DIGITS, PACKED, TENSOR


@pytest.mark.processes
def test_an_own_format_goes_on_in_the_middle_of_an_epoch_with_the_same_bits(tmp_path: Path) -> None:
    alone, cut = (write_run(tmp_path / name, [*DIGITS, *PACKED]) for name in ("alone", "cut"))
    assert train(alone) == 0
    cut_after(cut, 2)
    assert train(cut) == 0
    assert difference(alone, cut) == 0


@pytest.mark.processes
@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ((*PACKED, "+data.broken=7"), "packed/7 cannot be read (Error -3 while decompressing data"),
        (
            (*PACKED, "+data.has_statistics=false"),
            "data._target_=tests.support.sources.packed_digits gives no tensor of pixels, and no statistics to "
            "normalize them by: return Splits(..., statistics=Statistics(mean, std))",
        ),
        (
            (*TENSOR, "+data.memory=stream"),
            "data.memory=stream, but data._target_=tests.support.sources.few_digits does not stream its images: "
            "use data.memory=auto",
        ),
        (
            (*TENSOR, "+data.is_float=true", "augment.flip=true"),
            "augment.flip=true, augment.cutout=4 changes uint8 images, and data._target_=tests.support.sources."
            "few_digits gives floats: leave it out, and change the images in the source",
        ),
    ],
    ids=["broken", "statistics", "stream", "floats"],
)
def test_what_cannot_be_used_ends_the_run_with_one_line(tmp_path: Path, overrides: tuple[str, ...], line: str) -> None:
    folder = write_run(tmp_path / "run", [*DIGITS, *overrides])
    assert train(folder) == EXIT_CONFIG
    text = folder.failure.read_text()
    assert line in text
    assert "Traceback" not in text

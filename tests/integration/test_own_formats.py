"""Images in a format of the user's own: the same training as of a tensor, on any workers, streamed or in memory."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support.exact import assert_same_end, cut_after, train
from tests.support.harness import SMALL, difference, train_all, write_run

PLAIN = tuple(override for override in SMALL if not override.startswith("data"))
SOURCES = "data._target_=tests.support.sources"
EMPTIED = [f"~data.{key}" for key in ("val_fraction", "test_fraction", "split_seed", "memory")]
TENSOR = (*PLAIN, "data=digits", *EMPTIED, f"{SOURCES}.few_digits")
PACKED = (*PLAIN, "data=digits", *EMPTIED, f"{SOURCES}.packed_digits", "+data.num_workers=1")
RUNS: dict[str, tuple[int, tuple[str, ...]]] = {
    "streamed by one": (1, PACKED),
    "streamed by two": (2, (*PACKED, "trainer.loads=[3,1]")),
    "streamed by three": (3, (*PACKED, "trainer.loads=[2,0,1]", "+data.memory=stream")),
    "read by each": (2, (*PACKED, "+data.is_streamed=false")),
    "in memory": (1, (*PACKED, "+data.memory=host")),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    root = tmp_path_factory.mktemp("own_formats")
    found = {"tensor": write_run(root / "tensor", TENSOR)}
    for name, (num_workers, overrides) in RUNS.items():
        found[name] = write_run(root / name, [*overrides, f"trainer.devices={num_workers}"])
    for size in (1, 2, 3):
        train_all([folder for name, folder in found.items() if RUNS.get(name, (1,))[0] == size], size)
    return found


@pytest.mark.processes
@pytest.mark.parametrize("name", RUNS)
def test_an_own_format_ends_with_the_weights_of_the_tensor_of_its_images(
    runs: dict[str, RunFolder], name: str, figure: Any
) -> None:
    assert_same_end(runs["tensor"], runs[name], figure, " with a tensor")
    assert runs[name].read_summary()["test_loss"] == pytest.approx(
        runs["tensor"].read_summary()["test_loss"], rel=1e-12
    )


@pytest.mark.processes
def test_an_own_format_goes_on_in_the_middle_of_an_epoch_with_the_same_bits(
    runs: dict[str, RunFolder], tmp_path: Path
) -> None:
    cut = write_run(tmp_path / "cut", PACKED)
    cut_after(cut, 2)
    assert train(cut) == 0
    assert difference(runs["streamed by one"], cut) == 0


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
    folder = write_run(tmp_path / "run", overrides)
    assert train(folder) == EXIT_CONFIG
    text = folder.failure.read_text()
    assert line in text
    assert "Traceback" not in text

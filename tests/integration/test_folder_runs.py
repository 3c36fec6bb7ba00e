"""Trainings of image files end with the same bits wherever the pixels are and after any stop, and name what breaks."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.config.checks import validation
from lockstep.config.saved import config_file
from lockstep.runs.folder import EXIT_CONFIG
from tests.support.exact import cut_after, train
from tests.support.harness import difference, write_run
from tests.support.image_files import write_folder
from tests.support.recipes import CROPPED, FOLDER, IN_MEMORY, STREAMED

pytestmark = pytest.mark.full

PLACES = {"memory": IN_MEMORY, "cache": ("data.memory=auto",), "stream": STREAMED}


def overrides(root: Path, place: str, recipe: Sequence[str] = FOLDER) -> list[str]:
    return [*recipe, f"data.root={root / 'images'}", f"data.cache={root / 'cache'}", *PLACES[place]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folder_runs")
    write_folder(root / "images", count=35)
    return root


@pytest.mark.processes
@pytest.mark.parametrize("later", ["stream", "cache"])
@pytest.mark.parametrize("recipe", [FOLDER, CROPPED], ids=["centre", "random crops"])
def test_a_streamed_run_cut_in_the_middle_goes_on_with_the_same_bits_streamed_or_not(
    root: Path, tmp_path: Path, recipe: Sequence[str], later: str
) -> None:
    alone = write_run(tmp_path / "alone", overrides(root, "memory", recipe))
    assert train(alone) == 0
    for step in (1, 4):
        cut = write_run(tmp_path / f"cut{step}", overrides(root, "stream", recipe))
        cut_after(cut, step)
        tree = config_file.to_tree(config_file.load(cut.config))
        tree["data"] |= {"memory": "auto", "cache": str(root / "cache later")} if later == "cache" else {}
        config_file.save(validation.check_tree(tree), cut.config)
        time.sleep(1 - time.time() % 1)  # TensorBoard orders files by the second they were begun in
        assert train(cut) == 0
        assert difference(alone, cut) == 0, f"cut after the request in step {step}"


@pytest.mark.processes
def test_an_image_that_breaks_while_it_is_streamed_ends_the_run_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "images"
    for part, count in (("train", 35), ("val", 10)):  # of validation images nothing is read before they are needed
        write_folder(images / part, count=count)
    (images / "val" / "red fox" / "bild ü 07.png").write_bytes(b"no image")
    folder = write_run(tmp_path / "run", overrides(tmp_path, "stream"))
    assert train(folder) == EXIT_CONFIG
    assert "val/red fox/bild ü 07.png cannot be read" in capsys.readouterr().err

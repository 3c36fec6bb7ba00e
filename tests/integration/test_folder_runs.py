"""Trainings of image files end with the same bits, and name what breaks.

The bits are the same wherever the pixels are and after any stop.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.runs.folder import EXIT_CONFIG
from tests.support.exact import cut_after, train
from tests.support.harness import difference, write_run
from tests.support.image_files import write_folder
from tests.support.recipes import CROPPED, IN_MEMORY, STREAMED

pytestmark = pytest.mark.full


def overrides(root: Path, place: Sequence[str]) -> list[str]:
    return [*CROPPED, f"data.root={root / 'images'}", *place]


@pytest.mark.processes
def test_streamed_run_resumed(tmp_path: Path) -> None:
    write_folder(tmp_path / "images", count=35)
    alone = write_run(tmp_path / "alone", overrides(tmp_path, IN_MEMORY))
    assert train(alone) == 0
    for step in (1, 4):
        cut = write_run(tmp_path / f"cut{step}", overrides(tmp_path, STREAMED))
        cut_after(cut, step)
        assert train(cut) == 0
        assert difference(alone, cut) == 0, f"cut after the request in step {step}"


@pytest.mark.processes
def test_image_broken_while_streamed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = tmp_path / "images"
    # of validation images nothing is read before they are needed
    for part, count in (("train", 35), ("val", 10)):
        write_folder(images / part, count=count)
    (images / "val" / "red fox" / "bild ü 07.png").write_bytes(b"no image")
    folder = write_run(tmp_path / "run", overrides(tmp_path, STREAMED))
    assert train(folder) == EXIT_CONFIG
    assert "val/red fox/bild ü 07.png cannot be read" in capsys.readouterr().err

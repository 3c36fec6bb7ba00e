"""Which checkpoint a run goes on from when files are damaged or missing."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lockstep.config.errors import ConfigError
from lockstep.runs.folder import RunFolder
from lockstep.training import checkpoints


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def one_bit_flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(torch.full((300,), 3.0).numpy().tobytes())] ^= 1
    path.write_bytes(content)


def of_another_kind(path: Path) -> None:
    path.write_text("no checkpoint")


DAMAGES = [cut_short, emptied, one_bit_flipped, of_another_kind]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run with three checkpoints, each a minute older than the one before: last, best, first."""
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    for age, name in enumerate(("last", "best", "first")):
        path = folder.checkpoints / f"{name}.ckpt"
        torch.save({"weight": torch.full((300,), 3.0 - age)}, path)
        os.utime(path, (1e9 - 60 * age, 1e9 - 60 * age))
    return folder


def test_a_whole_checkpoint_is_taken_without_a_word(folder: RunFolder) -> None:
    for path in (folder.last_checkpoint, folder.best_checkpoint):
        assert checkpoints.chosen(folder, path) == (path, "")


@pytest.mark.parametrize("damage", DAMAGES)
def test_in_the_place_of_a_damaged_checkpoint_comes_the_newest_whole_one(
    folder: RunFolder, damage: Callable[[Path], None]
) -> None:
    damage(folder.last_checkpoint)
    path, note = checkpoints.chosen(folder, folder.last_checkpoint)
    assert path == folder.best_checkpoint
    assert str(folder.last_checkpoint) in note
    assert str(folder.best_checkpoint) in note
    assert "\n" not in note


def test_a_second_damaged_checkpoint_is_passed_over_and_named_too(folder: RunFolder) -> None:
    for path in (folder.last_checkpoint, folder.best_checkpoint):
        cut_short(path)
    path, note = checkpoints.chosen(folder, folder.last_checkpoint)
    assert path == folder.checkpoints / "first.ckpt"
    assert "last.ckpt" in note
    assert "best.ckpt" in note


def test_where_no_checkpoint_is_whole_all_are_named_and_none_is_touched(folder: RunFolder) -> None:
    paths = sorted(folder.checkpoints.iterdir())
    for path in paths:
        cut_short(path)
    before = [path.read_bytes() for path in paths]
    with pytest.raises(ConfigError) as caught:
        checkpoints.chosen(folder, folder.last_checkpoint)
    (error,) = caught.value.errors
    assert all(str(path) in error for path in paths)
    assert [path.read_bytes() for path in paths] == before
    assert sorted(folder.checkpoints.iterdir()) == paths


def test_a_missing_last_checkpoint_does_not_send_a_run_back_to_its_start(folder: RunFolder) -> None:
    folder.last_checkpoint.unlink()
    path, note = checkpoints.chosen(folder, folder.last_checkpoint)
    assert path == folder.best_checkpoint
    assert "last.ckpt" in note


def test_a_run_that_saved_nothing_has_no_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert checkpoints.chosen(folder, folder.last_checkpoint) == (None, "")


def test_a_checkpoint_that_cannot_be_read_is_damaged(folder: RunFolder) -> None:
    folder.last_checkpoint.unlink()
    folder.last_checkpoint.mkdir()
    path, note = checkpoints.chosen(folder, folder.last_checkpoint)
    assert path == folder.best_checkpoint
    assert "last.ckpt" in note

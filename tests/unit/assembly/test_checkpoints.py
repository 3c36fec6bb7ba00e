"""The checkpoint that a run resumes from when files are damaged or missing."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lockstep.assembly import checkpoints
from lockstep.config.errors import ConfigError
from lockstep.runs.folder import RunFolder


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def one_bit_flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(torch.full((300,), 3.0).numpy().tobytes())] ^= 1
    path.write_bytes(content)


def missing(path: Path) -> None:
    path.unlink()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def compressed(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(1_000_000))


DAMAGES = [cut_short, emptied, one_bit_flipped, missing, a_pipe, compressed]


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


def test_a_whole_checkpoint_is_used_without_a_note(folder: RunFolder) -> None:
    for path in (folder.last_checkpoint, folder.best_checkpoint):
        assert checkpoints.choose_checkpoint(folder, path) == (path, "")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_replaced_by_the_newest_whole_one(
    folder: RunFolder, damage: Callable[[Path], None]
) -> None:
    damage(folder.last_checkpoint)
    path, note = checkpoints.choose_checkpoint(folder, folder.last_checkpoint)
    assert path == folder.best_checkpoint
    assert note.startswith(f"{folder.last_checkpoint} ")
    assert note.endswith(f": using {folder.best_checkpoint} instead")
    assert "\n" not in note
    cut_short(folder.best_checkpoint)
    path, note = checkpoints.choose_checkpoint(folder, folder.last_checkpoint)
    assert path == folder.checkpoints / "first.ckpt"
    assert "last.ckpt" in note
    assert "best.ckpt" in note


def test_a_link_among_the_checkpoints_is_not_followed(folder: RunFolder) -> None:
    cut_short(folder.last_checkpoint)
    for target in ("nowhere", "first.ckpt"):
        folder.best_checkpoint.unlink()
        folder.best_checkpoint.symlink_to(target)
        assert checkpoints.choose_checkpoint(folder, folder.last_checkpoint).path == folder.checkpoints / "first.ckpt"


def test_where_no_checkpoint_is_whole_all_are_named_and_none_is_touched(folder: RunFolder) -> None:
    paths = sorted(folder.checkpoints.iterdir())
    for path in paths:
        cut_short(path)
    before = [path.read_bytes() for path in paths]
    with pytest.raises(ConfigError) as caught:
        checkpoints.choose_checkpoint(folder, folder.last_checkpoint)
    (error,) = str(caught.value).splitlines()
    assert all(str(path) in error for path in paths)
    assert [path.read_bytes() for path in sorted(folder.checkpoints.iterdir())] == before


def test_a_run_that_saved_nothing_has_no_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert checkpoints.choose_checkpoint(folder, folder.last_checkpoint) == (None, "")

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


def one_bit_flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(torch.full((300,), 3.0).numpy().tobytes())] ^= 1
    path.write_bytes(content)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def compressed(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(1_000_000))


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


def test_valid_checkpoint(folder: RunFolder) -> None:
    for path in (folder.last_checkpoint, folder.best_checkpoint):
        assert checkpoints.choose_checkpoint(folder, path) == (path, "")
    empty = RunFolder(folder.path / "empty")
    assert checkpoints.choose_checkpoint(empty, empty.last_checkpoint) == (None, "")


@pytest.mark.parametrize("damage", [cut_short, one_bit_flipped, Path.unlink, a_pipe, compressed])
def test_damaged_checkpoint(folder: RunFolder, damage: Callable[[Path], None]) -> None:
    damage(folder.last_checkpoint)
    path, note = checkpoints.choose_checkpoint(folder, folder.last_checkpoint)
    assert path == folder.best_checkpoint
    assert note.startswith(f"{folder.last_checkpoint} ")
    cut_short(folder.best_checkpoint)
    assert (
        checkpoints.choose_checkpoint(folder, folder.last_checkpoint).path
        == folder.checkpoints / "first.ckpt"
    )


def test_link_not_followed(folder: RunFolder) -> None:
    cut_short(folder.last_checkpoint)
    for target in ("nowhere", "first.ckpt"):
        folder.best_checkpoint.unlink()
        folder.best_checkpoint.symlink_to(target)
        assert (
            checkpoints.choose_checkpoint(folder, folder.last_checkpoint).path
            == folder.checkpoints / "first.ckpt"
        )


def test_no_valid_checkpoint(folder: RunFolder) -> None:
    paths = sorted(folder.checkpoints.iterdir())
    for path in paths:
        cut_short(path)
    before = [path.read_bytes() for path in paths]
    with pytest.raises(ConfigError, match=str(folder.last_checkpoint)):
        checkpoints.choose_checkpoint(folder, folder.last_checkpoint)
    assert [path.read_bytes() for path in sorted(folder.checkpoints.iterdir())] == before

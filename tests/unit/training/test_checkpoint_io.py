import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.training.checkpoint_io import AtomicCheckpointIO


def state_after(step: int) -> dict[str, Any]:
    return {
        "global_step": step,
        "loops": {"fit_loop": {"batches": step}},
        "state_dict": {"weight": torch.full((3,), float(step))},
    }


def step_in(path: Path) -> int:
    return torch.load(path, weights_only=True)["global_step"]


def names(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def test_a_checkpoint_comes_back_as_it_was_and_its_folder_is_made(tmp_path: Path) -> None:
    io = AtomicCheckpointIO()
    io.save_checkpoint(state_after(1), tmp_path / "checkpoints" / "last.ckpt")
    read = io.load_checkpoint(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert torch.equal(read["state_dict"]["weight"], torch.ones(3))
    assert (read["global_step"], read["loops"]) == (1, {"fit_loop": {"batches": 1}})


def test_two_files_of_one_state_do_not_share_damage_or_later_states(tmp_path: Path) -> None:
    io = AtomicCheckpointIO()
    for name in ("best.ckpt", "last.ckpt"):
        io.save_checkpoint(state_after(1), tmp_path / name)
    io.save_checkpoint(state_after(2), tmp_path / "last.ckpt")
    assert (step_in(tmp_path / "best.ckpt"), step_in(tmp_path / "last.ckpt")) == (1, 2)
    os.truncate(tmp_path / "last.ckpt", 100)
    assert step_in(tmp_path / "best.ckpt") == 1
    assert names(tmp_path) == {"best.ckpt", "last.ckpt"}


def test_a_crash_while_writing_keeps_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io = AtomicCheckpointIO()
    io.save_checkpoint(state_after(1), tmp_path / "last.ckpt")

    def broken(checkpoint: Any, file: Any) -> None:
        file.write(b"half a checkpoint")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", broken)
        with pytest.raises(OSError, match="No space left"):
            io.save_checkpoint(state_after(3), tmp_path / "last.ckpt")
    assert names(tmp_path) == {"last.ckpt"}
    assert step_in(tmp_path / "last.ckpt") == 1
    io.save_checkpoint(state_after(3), tmp_path / "last.ckpt")
    assert step_in(tmp_path / "last.ckpt") == 3

import copy
import errno
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from typing_extensions import override

from lockstep.assembly import checkpoint_io, refusals
from lockstep.assembly.checkpoint_io import AtomicCheckpointIO


class Later(Executor):
    """A thread that is as slow as can be: it does its work when somebody waits for a result."""

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return Mock(result=partial(fn, *args, **kwargs))


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


def test_crash_keeps_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io = AtomicCheckpointIO(Later(), ())
    io.save_checkpoint(state_after(1), tmp_path / "last.ckpt")

    def broken(checkpoint: Any, file: Any) -> None:
        file.write(b"half a checkpoint")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", broken)
        with pytest.raises(OSError, match="No space left"):
            io.save_checkpoint(state_after(3), tmp_path / "last.ckpt")
    assert names(tmp_path) == {"last.ckpt"}
    read = io.load_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert torch.equal(read["state_dict"]["weight"], torch.ones(3))
    assert (read["global_step"], read["loops"]) == (1, {"fit_loop": {"batches": 1}})


# -- behind the training ---------------------------------------------------------------------------


@pytest.fixture
def behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AtomicCheckpointIO:
    """Write both files later.

    There is no GPU in this test: tests/integration/test_gpu_waits.py shows the copy.
    """
    monkeypatch.setattr(checkpoint_io, "_snapshot", copy.deepcopy)
    return AtomicCheckpointIO(Later(), (tmp_path / "best.ckpt", tmp_path / "last.ckpt"))


def test_written_before_next_state(tmp_path: Path, behind: AtomicCheckpointIO) -> None:
    for step in (1, 2):
        for name in ("best.ckpt", "last.ckpt"):
            behind.save_checkpoint(state_after(step), tmp_path / name)
        assert names(tmp_path) == ({"best.ckpt", "last.ckpt"} if step > 1 else set())
    assert (step_in(tmp_path / "best.ckpt"), step_in(tmp_path / "last.ckpt")) == (1, 1)
    behind.save_checkpoint(state_after(2), tmp_path / "other.ckpt")
    assert step_in(tmp_path / "other.ckpt") == 2, "its reader may not wait"
    behind.teardown()
    assert (step_in(tmp_path / "best.ckpt"), step_in(tmp_path / "last.ckpt")) == (2, 2)


@pytest.mark.parametrize("is_end", [True, False])
def test_error_in_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_end: bool) -> None:
    monkeypatch.setattr(checkpoint_io, "_snapshot", copy.deepcopy)

    def broken(checkpoint: Any, file: Any) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 704 vs 598")  # as torch.save does

    monkeypatch.setattr(torch, "save", broken)
    with ThreadPoolExecutor(1) as thread:
        behind = AtomicCheckpointIO(thread, (tmp_path / "last.ckpt",))
        behind.save_checkpoint(state_after(1), tmp_path / "last.ckpt")
        try:
            raise ValueError("another error, at which Lightning takes the fit down")
        except ValueError:
            with pytest.raises(RuntimeError, match="unexpected pos") as caught:
                behind.teardown() if is_end else behind.save_checkpoint(
                    state_after(2), tmp_path / "last.ckpt"
                )
    assert "last.ckpt cannot be written" in str(
        refusals.explain_error(caught.value, tmp_path, "rank 0 of 1")
    )
    assert names(tmp_path) == set()

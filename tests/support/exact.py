"""Trainings for tests in this process, also cut off after a step."""

import pytest

from lockstep.callbacks.stop import StopTogether
from lockstep.launch import worker
from lockstep.runs.folder import EXIT_STOPPED, RunFolder


def train(folder: RunFolder) -> int:
    """Train a run and test it in this process. Returns the exit code."""
    return worker.run_here(worker.Job("train", str(folder.path), {"command": "none", "has_test": True}), None)


def train_until(folder: RunFolder, step: int) -> int:
    """Train a run in this process, and have it asked to stop after a step. Returns the exit code: it may be through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopTogether, "_request", lambda self, trainer: 15 * (trainer.global_step == step))
        return train(folder)


def cut_after(folder: RunFolder, step: int) -> None:
    """Train a run in this process until it stops in good order after a step."""
    assert train_until(folder, step) == EXIT_STOPPED

"""Trainings in the process of a test, also stopped after a step."""

import pytest

from lockstep.callbacks.stop import StopTogether
from lockstep.launch import worker
from lockstep.runs.folder import EXIT_STOPPED, RunFolder


def train(folder: RunFolder) -> int:
    """Train and test a run. Returns the exit code."""
    return worker.run_here(worker.Job(worker.TRAIN, str(folder.path), {"command": "none", "has_test": True}), None)


def train_until(folder: RunFolder, step: int) -> int:
    """Train a run with a stop request after a step. Returns the exit code, 0 if the run finished first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopTogether, "request", lambda self, trainer: 15 * (trainer.global_step == step))
        return train(folder)


def cut_after(folder: RunFolder, step: int) -> None:
    """Train a run until it stops after a step."""
    assert train_until(folder, step) == EXIT_STOPPED

"""Trainings in the process of a test, also stopped after a step."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.callbacks.stop import StopTogether
from lockstep.launch import worker
from lockstep.runs.folder import EXIT_CONFIG, EXIT_STOPPED, RunFolder
from tests.support.harness import write_run


def train(folder: RunFolder) -> int:
    """Train and test a run. Returns the exit code."""
    return worker.run_here(
        worker.Job(worker.train, folder, {"command": "none", "has_test": True}), None
    )


def trained(path: Path, overrides: Sequence[str]) -> RunFolder:
    """Return a run that has been trained and tested."""
    folder = write_run(path, overrides)
    assert train(folder) == 0
    return folder


def refusal(path: Path, overrides: Sequence[str]) -> str:
    """Return the reason why a run cannot be trained."""
    folder = write_run(path, overrides)
    assert train(folder) == EXIT_CONFIG
    return folder.failure.read_text()


def train_until(folder: RunFolder, step: int) -> int:
    """Train a run with a stop request after a step.

    Returns the exit code, 0 if the run finished first.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            StopTogether, "request", lambda self, trainer: 15 * (trainer.global_step == step)
        )
        return train(folder)


def cut_after(folder: RunFolder, step: int) -> None:
    """Train a run until it stops after a step."""
    assert train_until(folder, step) == EXIT_STOPPED

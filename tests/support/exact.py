"""Trainings for tests: in this process, also cut off after a step, and the same ones on one, two and three workers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from lockstep.callbacks.stop import StopTogether
from lockstep.launch import worker
from lockstep.runs.folder import EXIT_STOPPED, RunFolder
from tests.support.harness import difference, train_all, write_run

LOADS = {1: "null", 2: "[1,0]", 3: "[2,0,1]"}  # one of several workers has no samples


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


def train_splits(root: Path, recipes: Mapping[str, Sequence[str]]) -> dict[tuple[int, str], RunFolder]:
    """Train the overrides of each recipe with 1, 2 and 3 workers. Returns the runs by workers and recipe."""
    runs = {}
    for world_size, loads in LOADS.items():
        where = (f"trainer.devices={world_size}", f"trainer.loads={loads}")
        for name, overrides in recipes.items():
            runs[world_size, name] = write_run(root / f"{name} {world_size}", [*overrides, *where])
        train_all([folder for (size, _), folder in runs.items() if size == world_size], world_size)
    return runs


def assert_same_end(alone: RunFolder, other: RunFolder, figure: Callable[[str], object], kind: str = "") -> None:
    """A run ends with all numbers of the one of one process, `kind` of which the figure tells."""
    worst = difference(alone, other)
    figure(f"largest difference to one process{kind} {worst:.1e}")
    assert worst <= 1e-12

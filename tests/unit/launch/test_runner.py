"""What follows the end of a run, in which of its processes, and when."""

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep.config.checks import validation
from lockstep.config.composing.compose import compose_config
from lockstep.launch import parent, runner, worker
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED, RunFolder
from lockstep.system.launcher import World
from lockstep.trials import out_of_fold

FOLDS = ["trainer.devices=2", "strategy=ddp", "silent=true", "data.folds=2", "data.fold=0"]


@pytest.mark.parametrize(
    ("code", "rank", "expected"),
    [
        (0, None, True),
        (EXIT_CONFIG, None, False),
        (EXIT_INTERRUPTED, None, False),
        (EXIT_FAILED, 0, False),
        (0, 0, True),
        (0, 1, False),
    ],
)
def test_fold_reported_once_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, rank: int | None, expected: bool
) -> None:
    refreshed: list[RunFolder] = []

    def refresh(run: RunFolder, *, is_silent: bool) -> None:
        assert not run.is_locked()
        refreshed.append(run)

    folder = RunFolder(tmp_path)
    world = None if rank is None else World("torchrun", rank, rank, 0, 2)
    monkeypatch.setattr(out_of_fold, "refresh", refresh)
    monkeypatch.setattr(worker, "run_here", lambda job, place, flag: code)
    monkeypatch.setattr(worker, "import_training", lambda: None)
    monkeypatch.setattr(parent, "run_workers", lambda job, count, flag, is_parallel: code)
    monkeypatch.setattr(runner, "outer_world", lambda environ: world)
    group = SimpleNamespace(meet=lambda *args: None, shared_folder=lambda make, config, place, known: make())
    monkeypatch.setitem(sys.modules, "lockstep.assembly.process_group", group)  # which imports torch

    def make(held: contextlib.ExitStack) -> RunFolder:
        held.enter_context(runner.lock_run(folder))
        return folder

    assert runner.run_workers(make, validation.check_config(compose_config(FOLDS))) == (folder, code)
    assert bool(refreshed) == expected

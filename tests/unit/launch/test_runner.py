"""What follows the end of a run, in which of its processes, and when."""

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep.config.errors import ConfigError
from lockstep.config.saved import config_file
from lockstep.launch import parent, runner, worker
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED, RunFolder
from lockstep.system.launcher import World
from lockstep.trials import out_of_fold
from tests.support.composed import config_of

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

    def train(*args: object, **settings: object) -> int:
        assert folder.is_locked()
        return code

    config = config_of(*FOLDS)
    folder = RunFolder(tmp_path)
    config_file.save(config, folder.config)
    world = None if rank is None else World("torchrun", rank, rank, 0, 2)
    monkeypatch.setattr(out_of_fold, "refresh", refresh)
    monkeypatch.setattr(worker, "run_here", train)
    monkeypatch.setattr(worker, "import_training", lambda: None)
    monkeypatch.setattr(parent, "run_workers", train)
    monkeypatch.setattr(runner, "outer_world", lambda environ: world)
    group = SimpleNamespace(
        connect_ranks=lambda *args: None, shared_folder=lambda run, config, place: run
    )
    # which imports torch
    monkeypatch.setitem(sys.modules, "lockstep.assembly.process_group", group)
    assert runner.resume(folder, config) == (folder, code)
    assert bool(refreshed) == expected


@pytest.mark.parametrize("is_rejected", [True, False])
@pytest.mark.usefixtures("in_tmp_path")
def test_rejected_run_leaves_nothing(tmp_path: Path, is_rejected: bool) -> None:
    before = tmp_path / "outputs/2026-11-20/before"
    before.mkdir(parents=True)
    (tmp_path / "outputs/latest").symlink_to("2026-11-20/before")
    config = config_of("silent=true")
    error = ConfigError if is_rejected else OSError
    with contextlib.suppress(error), runner.new_run(config, [], None) as folder:
        assert folder.is_locked()
        assert (tmp_path / "outputs/latest").resolve() == folder.path
        raise error
    assert not folder.is_locked()
    assert folder.config.exists() != is_rejected
    assert len(list((tmp_path / "outputs").iterdir())) == (2 if is_rejected else 3)
    assert (tmp_path / "outputs/latest").resolve() == (before if is_rejected else folder.path)


@pytest.mark.usefixtures("in_tmp_path")
def test_new_run_in_run_folder(tmp_path: Path) -> None:
    config = config_of("silent=true")
    with runner.new_run(config, [], tmp_path / "run") as folder:
        pass
    saved = folder.config.read_text()
    with pytest.raises(ConfigError) as error, runner.new_run(config, [], folder.path):
        pass
    assert error.value.errors[0].code == "exists"
    assert folder.config.read_text() == saved


def test_resume_run_of_other_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of("strategy=cpu")
    folder = RunFolder(tmp_path)
    config_file.save(config, folder.config)
    folder.note(environment={"packages": {"lockstep": "0.0.1"}})
    monkeypatch.setattr(parent, "run_workers", lambda *_, **__: 0)
    assert runner.resume(folder, config) == (folder, 0)
    assert "keeps its settings of Lockstep 0.0.1" in capsys.readouterr().out

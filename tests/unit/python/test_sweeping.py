"""Sweeps and jobs from Python."""

import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.cluster import following, jobs
from lockstep.config.errors import ConfigError
from lockstep.python.sweeping import Job, Sweep, submit


def test_the_table_of_a_sweep_has_numbers_where_all_values_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = {"trial": 1, "optimizer.lr": "1e-2", "optimizer": "sgd", "reason": "", "val/accuracy": 0.5, "epoch": "2/2"}
    sweep = Sweep(tmp_path, [first, {"trial": 0, "optimizer.lr": "0.1", "optimizer": "adamw", "reason": "x"}], [])
    table: Any = sweep.table
    assert list(table) == list(first)
    assert table["optimizer.lr"].tolist() == [0.01, 0.1]
    assert table["val/accuracy"].isna().tolist() == [False, True]
    assert [table.loc[0, key] for key in ("trial", "optimizer", "reason", "epoch")] == [1, "sgd", "", "2/2"]
    assert Sweep(tmp_path, [], []).table.empty
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"install it with: pip install pandas, or use Sweep\.rows"):
        _ = sweep.table


def test_a_job_that_is_deleted_while_it_is_waited_for_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([[object()], []])
    monkeypatch.setattr(jobs, "jobs_of", lambda folders: next(found))
    monkeypatch.setattr(following, "poll_jobs", lambda chosen: iter([[]]))
    with pytest.raises(FileNotFoundError, match="has no job: it was deleted"):
        Job(tmp_path).wait()


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ("cluster=local", r"^'cluster=local' is not a list of settings: write \['optimizer.lr=0.1'\]$"),
        (["cluster=local", "seed"], "^'seed' cannot be read"),
    ],
)
def test_submit_refuses_what_is_no_list_of_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ConfigError, match=error):
        submit(typed)
    assert list(tmp_path.iterdir()) == []

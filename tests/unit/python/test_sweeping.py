"""Sweeps and jobs from Python."""

import sys
from pathlib import Path

import pytest

from lockstep.cluster import jobs, waiting
from lockstep.config.errors import ConfigError
from lockstep.python.sweeping import Job, submit


def test_a_job_that_is_deleted_while_it_is_waited_for_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([[object()], []])
    monkeypatch.setattr(jobs, "jobs_of", lambda folders: next(found))
    monkeypatch.setattr(waiting, "poll_jobs", lambda chosen: iter([[]]))
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

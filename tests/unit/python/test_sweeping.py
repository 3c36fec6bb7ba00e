"""Jobs from Python."""

from pathlib import Path

import pytest

from lockstep.cluster import following, jobs
from lockstep.python.sweeping import Job


def test_a_job_that_is_deleted_while_it_is_waited_for_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([[object()], []])
    monkeypatch.setattr(jobs, "of", lambda folders: next(found))
    monkeypatch.setattr(following, "looks", lambda chosen: iter([[]]))
    with pytest.raises(FileNotFoundError, match="has no job: it was deleted"):
        Job(tmp_path).wait()

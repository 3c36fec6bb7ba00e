"""The command of a job repeats the options that were typed."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli import inference
from lockstep.cluster import submission
from lockstep.runs.folder import RunFolder
from tests.support.composed import config_of


def test_a_job_keeps_the_promised_error_rate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[str] = []

    def start(config: Any, name: str, arguments_in: Any) -> int:
        given.extend(arguments_in(RunFolder(tmp_path)))
        return 0

    monkeypatch.setattr(submission, "start_command", start)
    typed = argparse.Namespace(command="predict", source="photos", max_error=0.05, top_k=2, overrides=[])
    assert inference._submit(typed, ["run"], config_of()) == 0
    assert given == ["predict", "run", "photos", "--top-k=2", "--max-error=0.05", f"--job={tmp_path}"]

"""What `lockstep labels` refuses before it reads the run."""

import argparse
from pathlib import Path

import pytest

from lockstep.cli import inference


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("list.txt", r"--output list\.txt is not named as a CSV file: use labels\.csv\."),
        ("done.csv", r"--output: done\.csv exists: remove it, or name another file\."),
        ("drawn.csv", r"--output: drawn\.png exists: remove it, or name another file\."),
    ],
)
def test_no_list_of_a_person_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("done.csv", "drawn.png"):
        Path(name).touch()
    with pytest.raises(ValueError, match=reason):
        inference.infer(argparse.Namespace(command="labels", run="run", output=output, json=False), tmp_path)

"""Errors of `lockstep export` and `labels` before they read the run; the command of a job."""

import argparse
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli import export, inference
from lockstep.cluster import submission
from lockstep.config.errors import ConfigError
from lockstep.runs.folder import RunFolder
from tests.support.composed import config_of
from tests.support.harness import write_run


@pytest.mark.parametrize(
    ("output", "overrides", "kind", "reason"),
    [
        (
            "network.h5",
            [],
            ValueError,
            r"--output network\.h5: name a file that ends in \.onnx or \.pt2\.",
        ),
        (
            "network.onnx",
            [],
            ValueError,
            r"--output network\.onnx needs onnxscript: pip install onnxscript, or name a file",
        ),
        *(
            ("network.pt2", [text], ConfigError, rf"^{re.escape(text)} .* float32")
            for text in ("trainer.precision=float32", "++trainer.precision=bfloat16")
        ),
    ],
)
def test_export_refused(
    monkeypatch: pytest.MonkeyPatch,
    output: str,
    overrides: list[str],
    kind: type[Exception],
    reason: str,
) -> None:
    monkeypatch.setattr(export.signatures, "is_there", lambda package: package != "onnxscript")
    monkeypatch.setattr(export.inference, "open_run", lambda *_: pytest.fail("opened"))
    arguments = argparse.Namespace(output=output, run="latest", overrides=overrides)
    with pytest.raises(kind, match=reason):
        export.run_export(arguments, Path())


@pytest.mark.parametrize(
    ("is_trusted", "reason"),
    [
        (False, "was not made here: .*: name a file with --output"),
        (True, "has the run finished an epoch"),
    ],
)
def test_export_foreign_run(tmp_path: Path, is_trusted: bool, reason: str) -> None:
    folder = write_run(tmp_path / "run", ["data=synthetic"])
    theirs = shutil.copytree(folder.path, tmp_path / "theirs")
    arguments = argparse.Namespace(
        output=None, run=str(theirs), trust=is_trusted, checkpoint="best", overrides=[]
    )
    with pytest.raises(OSError, match=reason):
        export.run_export(arguments, Path())


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("list.txt", r"--output list\.txt is not named as a CSV file: use labels\.csv\."),
        ("done.csv", r"--output: done\.csv exists: remove it, or name another file\."),
        ("drawn.csv", r"--output: drawn\.png exists: remove it, or name another file\."),
    ],
)
@pytest.mark.usefixtures("in_tmp_path")
def test_labels_output_refused(tmp_path: Path, output: str, reason: str) -> None:
    for name in ("done.csv", "drawn.png"):
        Path(name).touch()
    with pytest.raises(ValueError, match=reason):
        inference.infer(
            argparse.Namespace(command="labels", run="run", output=output, json=False), tmp_path
        )


def test_submit_max_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[str] = []

    def start(config: Any, name: str, arguments_in: Any) -> int:
        given.extend(arguments_in(RunFolder(tmp_path)))
        return 0

    monkeypatch.setattr(submission, "start_command", start)
    typed = argparse.Namespace(
        command="predict", source="photos", max_error=0.05, top_k=2, flip=True, overrides=[]
    )
    assert inference._submit(typed, "run", config_of()) == 0
    assert given == [
        "predict",
        "run",
        "photos",
        "--top-k=2",
        "--max-error=0.05",
        f"--job={tmp_path}",
        "--flip",
    ]

"""What `lockstep export` refuses before it reads the run."""

import argparse
from pathlib import Path

import pytest

from lockstep.cli import export


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("network.h5", r"--output network\.h5: name a file that ends in \.onnx or \.pt2\."),
        ("network.onnx", r"--output network\.onnx needs onnxscript: pip install 'lockstep\[export\]', or name a file"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, output: str, reason: str
) -> None:
    monkeypatch.setattr(export.signatures, "is_there", lambda package: package != "onnxscript")
    with pytest.raises(ValueError, match=reason):
        export.run_export(argparse.Namespace(output=output, run="latest"), Path())

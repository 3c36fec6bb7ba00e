"""What `lockstep export` refuses before it reads the run."""

import argparse
import re
import shutil
from pathlib import Path

import pytest

from lockstep.cli import export
from lockstep.config.errors import ConfigError
from tests.support.harness import write_run


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("network.h5", r"--output network\.h5: name a file that ends in \.onnx or \.pt2\."),
        ("network.onnx", r"--output network\.onnx needs onnxscript: pip install onnxscript, or name a file"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, output: str, reason: str
) -> None:
    monkeypatch.setattr(export.signatures, "is_there", lambda package: package != "onnxscript")
    with pytest.raises(ValueError, match=reason):
        export.run_export(argparse.Namespace(output=output, run="latest", overrides=[]), Path())


@pytest.mark.parametrize(
    ("missing", "name", "line"),
    [
        ("", "network.onnx", ""),
        ("onnx", "network.pt2", "As network.pt2, because network.onnx needs onnx: pip install onnx\n"),
    ],
)
def test_without_a_name_the_file_is_in_the_run_folder(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    missing: str,
    name: str,
    line: str,
) -> None:
    folder = write_run(tmp_path / "run", ["data=synthetic"])
    asked: list[str] = []

    def need_writable(option: str, path: str) -> None:
        asked.append(path)
        raise ValueError(option)

    monkeypatch.setattr(export.signatures, "is_there", lambda package: package != missing)
    monkeypatch.setattr(export.inference, "need_writable", need_writable)
    arguments = argparse.Namespace(output=None, run=str(folder.path), trust=False, overrides=[])
    with pytest.raises(ValueError, match="--output"):
        export.run_export(arguments, Path())
    assert (asked, capsys.readouterr().out) == ([str(folder.path / name)], line)


@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_folder_of_another_origin_is_not_written_without_trust(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_trusted: bool
) -> None:
    folder = write_run(tmp_path / "run", ["data=synthetic"])
    shutil.copytree(folder.path, tmp_path / "theirs")
    asked: list[str] = []
    monkeypatch.setattr(export.inference, "need_writable", lambda option, path: asked.append(path))
    arguments = argparse.Namespace(
        output=None, run=str(tmp_path / "theirs"), trust=is_trusted, checkpoint="best", overrides=[]
    )
    reason = "has the run finished an epoch" if is_trusted else "was not made here: .*: name a file with --output"
    with pytest.raises(OSError, match=reason):
        export.run_export(arguments, Path())
    assert len(asked) == is_trusted


@pytest.mark.parametrize("text", ["trainer.precision=float32", "++trainer.precision=bfloat16"])
def test_precision_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(export.inference, "open_run", lambda *_: pytest.fail("opened"))
    arguments = argparse.Namespace(output="network.pt2", run="latest", overrides=[text])
    with pytest.raises(ConfigError, match=rf"^{re.escape(text)} .* float32"):
        export.run_export(arguments, Path())

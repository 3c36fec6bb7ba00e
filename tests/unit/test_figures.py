"""Reports by `pytest --junitxml`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.harness import ROOT


@pytest.mark.processes
def test_a_junit_report_has_the_recorded_differences(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(record_property): record_property('figure', 1)\n")
    words = ["-n", "0", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "--junitxml", "report.xml", "test_it.py"]
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert 'name="figure" value="1"' in (tmp_path / "report.xml").read_text()

"""Reports of pytest in which the figures of tests stand."""

import subprocess
import sys
from pathlib import Path

from tests.support.harness import ROOT


def test_a_report_for_other_tools_can_hold_the_figures(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(record_property): record_property('figure', 1)\n")
    words = ["-n", "0", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "--junitxml", "report.xml", "test_it.py"]
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

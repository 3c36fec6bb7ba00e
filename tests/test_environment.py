"""What a process finds around it: versions of what is installed and of what is not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from tests.harness import ROOT, environ

DESCRIBE = "import json; from lockstep import environment; print(json.dumps(environment.describe()))"


@pytest.mark.processes
def test_a_source_folder_that_nobody_installed_is_described_too(tmp_path: Path) -> None:
    """Every installed package but the metadata of two, and the sources of Lockstep by PYTHONPATH."""
    for folder in map(Path, sys.path):
        for entry in folder.iterdir() if folder.name == "site-packages" else ():
            is_hidden = entry.name.lower().startswith(("lockstep-", "__editable__", "tensorboard-"))
            link = tmp_path / entry.name
            if not is_hidden and entry.suffix != ".pth" and not link.exists():
                link.symlink_to(entry)
    path = f"{ROOT / 'src'}:{tmp_path}"
    words = [sys.executable, "-S", "-c", DESCRIBE]
    done = subprocess.run(words, env={**environ(), "PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    packages = json.loads(done.stdout)["packages"]
    assert packages["lockstep"] == lockstep.__version__
    assert packages["tensorboard"] is None
    assert packages["torch"]

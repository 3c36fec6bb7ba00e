"""Modules replayed as CUDA graphs; the trainings are in tests/integration/test_graphs.py."""

import os
import subprocess
import sys

import pytest

from tests.support.gpus import PretendedGpus
from tests.support.harness import ROOT, environ

pytestmark = pytest.mark.processes


def test_graphed_modules_pretended_gpu(gpus: PretendedGpus) -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/support/graphed_on_gpu.py"]
    variables = {**environ(), **gpus.environ(1, path=os.environ.get("PYTHONPATH", ""))}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

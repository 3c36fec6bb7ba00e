"""CUDA graphs of the pretended GPU capture, replay and refuse as CUDA's do."""

import subprocess
import sys

import pytest

from tests.support.gpus import PretendedGpus
from tests.support.harness import PATIENCE_S, ROOT, environ


@pytest.mark.processes
def test_graphs_of_one_gpu(gpus: PretendedGpus) -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/support/graphs_on_gpu.py"]
    variables = {**environ(), **gpus.environ(2)}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout

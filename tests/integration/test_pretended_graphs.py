"""CUDA graphs of the pretended GPU capture, replay and refuse as CUDA's do."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gpus import PretendedGpus
from tests.support.harness import PATIENCE_S, ROOT, environ

pytestmark = pytest.mark.processes


def run(gpus: PretendedGpus, *commands: tuple[str, ...]) -> None:
    """Run modules together, each in a process with two GPUs."""
    with contextlib.ExitStack() as started:
        processes: list[subprocess.Popen[str]] = []
        for words in commands:
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                env={**environ(), **gpus.environ(2)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            processes.append(started.enter_context(process))
            started.callback(process.kill)
        for process in processes:
            output, _ = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, output


def test_graphs_of_one_gpu(gpus: PretendedGpus) -> None:
    run(gpus, ("pytest", "-q", "-n", "0", "tests/support/graphs_on_gpu.py"))


def test_collectives_of_two_gpus_are_captured_with_the_rest(gpus: PretendedGpus, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    run(gpus, *(("tests.support.graphed_ranks", str(rank), "2", store) for rank in range(2)))

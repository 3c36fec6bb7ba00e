"""Commands on pretended GPUs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from lockstep.runs.folder import EXIT_FAILED, RunFolder
from tests.support.gpus import PretendedGpus
from tests.support.harness import PATIENCE_S, ROOT, SMALL, command, environ, own_network

pytestmark = [pytest.mark.full, pytest.mark.processes]

ON_GPU = tuple(override for override in SMALL if override != "strategy=cpu")
TOOL = os.fspath(Path(sys.executable).parent / "lockstep")


class Shell:
    """Commands in one folder of a machine with GPUs."""

    def __init__(self, gpus: PretendedGpus, cwd: Path, *, count: int) -> None:
        self.cwd = cwd
        self.environ = {**environ(), **gpus.environ(count, path=str(ROOT))}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            cwd=self.cwd,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, out + err
        return subprocess.CompletedProcess(words, code, out, err)

    @property
    def latest(self) -> RunFolder:
        return RunFolder((self.cwd / "outputs" / "latest").resolve())


def test_evaluation_and_prediction(gpus: PretendedGpus, tmp_path: Path) -> None:
    """On other GPUs than those of the training."""
    shell = Shell(gpus, tmp_path, count=2)
    shell.run(*command(*ON_GPU, "trainer.devices=1"))
    output = shell.run(TOOL, "eval", "latest", "--devices", "2").stdout
    assert f"{shell.latest.read_summary()['test_accuracy']:.6f}" in output
    for devices in ("1,0", "1,"):
        shell.run(
            TOOL, "predict", "latest", "test", "--output", f"{devices}.csv", "--devices", devices
        )
    assert len({path.read_bytes() for path in tmp_path.glob("*.csv")}) == 1


def test_rank_of_bad_loss(gpus: PretendedGpus, tmp_path: Path) -> None:
    shell = Shell(gpus, tmp_path, count=2)
    network = [text for text in own_network("NanOnRank1") if text != "strategy=cpu"]
    output = shell.run(*command(*network), code=EXIT_FAILED).stderr
    assert (
        "The loss is not finite in optimizer step 3 (epoch 1, micro-batch 3) on rank 1." in output
    )


def test_tasks_of_srun(gpus: PretendedGpus, tmp_path: Path) -> None:
    """As `srun --ntasks=2 --gpus-per-task=1` starts them: for both it is GPU 0."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store  # frees the port
    shell = Shell(gpus, tmp_path, count=1)
    job = {
        "SLURM_JOB_ID": "1",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_GPUS_ON_NODE": "2",
    }
    shell.environ |= {
        **job,
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    tasks = []
    for rank in range(2):
        shell.environ |= {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        tasks.append(shell.start(*command(*ON_GPU, "trainer.devices=2")))
    outputs = [task.communicate(timeout=PATIENCE_S) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    summary = shell.latest.read_summary()
    assert (summary["workers"], summary["device"]) == (2, "Pretended GPU")


def test_tests_of_real_gpu(gpus: PretendedGpus, tmp_path: Path) -> None:
    """A part of tests/system/test_gpu.py, which machines without a GPU skip."""
    shell = Shell(gpus, ROOT, count=1)
    words = (
        "-m",
        "pytest",
        "-q",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path / 'tests'}",
    )
    output = shell.run(
        sys.executable,
        *words,
        "tests/system/test_gpu.py",
        "-k",
        "gpu_as_cpu or deterministic or adamw-ema",
    ).stdout
    assert "3 passed" in output

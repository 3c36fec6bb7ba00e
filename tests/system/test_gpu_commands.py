"""Commands on pretended GPUs: stopped, resumed, evaluated, swept, compared, failed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from lockstep.runs.folder import EXIT_FAILED, EXIT_STOPPED, RunFolder
from tests.support.gpus import MEMORY_MIB, PretendedGpus
from tests.support.harness import PATIENCE_S, ROOT, SMALL, command, difference, environ, wait_until

pytestmark = [pytest.mark.full, pytest.mark.processes]

ON_GPU = tuple(override for override in SMALL if override != "strategy=cpu")
TOOL = os.fspath(Path(sys.executable).parent / "lockstep")
SLOW = "+callbacks.slow={_target_:tests.support.callbacks.SlowAtFirst,step_s:0.2}"


class Shell:
    """Commands in one folder of a machine with GPUs."""

    def __init__(self, gpus: PretendedGpus, cwd: Path, *, count: int, memory_mib: int = MEMORY_MIB) -> None:
        self.cwd = cwd
        self.environ = {**environ(), **gpus.environ(count, memory_mib=memory_mib, path=str(ROOT))}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words, cwd=self.cwd, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, out + err
        return subprocess.CompletedProcess(words, code, out, err)

    @property
    def latest(self) -> RunFolder:
        return RunFolder((self.cwd / "outputs" / "latest").resolve())


def own_network(name: str) -> list[str]:
    kept = [override for override in ON_GPU if not override.startswith("model.")]
    return [*kept, f"model._target_=tests.support.networks.{name}", "+model.hidden=4"]


def test_a_run_stops_on_two_gpus_resumes_on_one_is_evaluated_and_predicts(gpus: PretendedGpus, tmp_path: Path) -> None:
    shell = Shell(gpus, tmp_path, count=2)
    shell.run(*command(*ON_GPU, "trainer.devices=1"))
    uncut = shell.latest
    process = shell.start(*command(*ON_GPU, SLOW))
    try:
        wait_until(lambda: shell.latest != uncut, "a second run")
        wait_until(lambda: shell.latest.read_status().get("step", 0) >= 2, "its second step")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == EXIT_STOPPED, out + err
    assert (shell.latest.read_status()["state"], shell.latest.read_status()["workers"]) == ("stopped", 2)
    shell.run(*command("resume=outputs/latest", "--trust", "trainer.devices=1"))
    assert difference(uncut, shell.latest) <= 1e-12

    output = shell.run(TOOL, "eval", "--trust", "latest", "--devices", "2").stdout
    accuracy = shell.latest.read_summary()["test_accuracy"]
    assert re.search(rf"accuracy\s+{accuracy:.6f}", output)
    for devices in ("1", "2", "1,0", "1,"):
        shell.run(TOOL, "predict", "--trust", "latest", "test", "--output", f"{devices}.csv", "--devices", devices)
    assert len({path.read_bytes() for path in tmp_path.glob("*.csv")}) == 1
    assert len((tmp_path / "1.csv").read_text().splitlines()) == 1 + 31


def test_the_rank_with_a_bad_loss_is_named(gpus: PretendedGpus, tmp_path: Path) -> None:
    shell = Shell(gpus, tmp_path, count=2)
    output = shell.run(*command(*own_network("NanOnRank1")), code=EXIT_FAILED).stderr
    failure = shell.latest.failure.read_text()
    assert failure.startswith("The loss is not finite in optimizer step 3 (epoch 1, micro-batch 3) on rank 1.\nLower ")
    assert failure.partition("\n\n")[0] in output


def test_a_gpu_that_is_too_small_ends_a_run_with_advice(gpus: PretendedGpus, tmp_path: Path) -> None:
    shell = Shell(gpus, tmp_path, count=2, memory_mib=4)
    output = shell.run(*command(*ON_GPU, "global_batch_size=64"), code=EXIT_FAILED).stderr
    assert "ran out of memory (" in output
    assert "trainer.accumulate_grad_batches" in output
    assert "Traceback" not in output


def test_tasks_of_srun_that_see_one_gpu_each_train_together(gpus: PretendedGpus, tmp_path: Path) -> None:
    """As `srun --ntasks=2 --gpus-per-task=1` starts them: for both it is GPU 0."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store  # frees the port
    shell = Shell(gpus, tmp_path, count=1)
    job = {"SLURM_JOB_ID": "1", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_GPUS_ON_NODE": "2"}
    shell.environ |= {**job, "SLURM_STEP_TASKS_PER_NODE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    tasks = []
    for rank in range(2):
        shell.environ |= {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        tasks.append(shell.start(*command(*ON_GPU, "trainer.devices=2")))
    outputs = [task.communicate(timeout=PATIENCE_S) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    summary = shell.latest.read_summary()
    assert (summary["workers"], summary["device"]) == (2, "Pretended GPU")


def test_the_tests_of_a_real_gpu_pass_here(gpus: PretendedGpus, tmp_path: Path) -> None:
    """A part of tests/system/test_gpu.py, which machines without a GPU skip."""
    shell = Shell(gpus, ROOT, count=1)
    words = ("-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tests'}")
    output = shell.run(
        sys.executable, *words, "tests/system/test_gpu.py", "-k", "cpu_does or bit_by_bit or adamw-ema"
    ).stdout
    assert "3 passed" in output

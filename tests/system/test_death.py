"""A process dies by a signal.

Its rank, signal and place are in failure.txt, in the status and on the screen.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.runs import heartbeat
from lockstep.runs.folder import RunFolder
from tests.support import commands
from tests.support.callbacks import ends_after
from tests.support.commands import Command, latest
from tests.support.harness import PATIENCE_S, ROOT, SMALL, command, environ, write_run

pytestmark = [pytest.mark.full, pytest.mark.processes]
HOST = socket.gethostname()
SOURCE = ROOT / "tests" / "support" / "callbacks.py"


# the line of the callback that ends its process
LINE = SOURCE.read_text().splitlines().index("            os.kill(os.getpid(), self._number)") + 1


@pytest.mark.parametrize(
    ("num_workers", "rank", "number"),
    [
        (1, 0, signal.SIGSEGV),
        (2, 0, signal.SIGABRT),
        (2, 1, signal.SIGKILL),
    ],
)
def test_rank_death(tmp_path: Path, num_workers: int, rank: int, number: signal.Signals) -> None:
    words = command(*SMALL, f"trainer.devices={num_workers}", ends_after(3, number.name, rank))
    done = commands.run(words, tmp_path, {**environ(), "PYTHONPATH": str(ROOT)})
    assert done.returncode == (128 + number if num_workers == 1 else 1), done.stderr
    folder = latest(tmp_path)
    reason = folder.read_status()["reason"]
    assert reason.startswith(f"rank {rank} of {num_workers} was ended by {number.name} on {HOST}")
    assert (f"{SOURCE}:{LINE}" in reason) == (number != signal.SIGKILL)
    assert folder.failure.read_text().splitlines()[0] == reason
    assert reason in done.stderr
    assert folder.heartbeats() == {}


NETWORK = """
import os
from torch import nn


class Leaves(nn.Linear):
    def __init__(self, in_channels, num_classes):
        super().__init__(64, num_classes)

    def forward(self, x):
        if len(x) > 2 and os.environ["RANK"] == "1":
            os._exit(3)
        return super().forward(x.flatten(1))
"""


def test_rank_exits(tmp_path: Path) -> None:
    """A worker that ends itself leaves no error message."""
    (tmp_path / "leaving.py").write_text(NETWORK)
    overrides = ["data=digits", "model._target_=leaving.Leaves", "trainer.devices=2"]
    done = commands.run(command(*overrides), tmp_path, environ())
    assert done.returncode == 1, done.stderr
    reason = "rank 1 of 2 exited with code 3, without an error message"
    assert latest(tmp_path).read_status()["reason"] == reason
    assert reason in done.stderr


def test_srun_task_death(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [*SMALL, "trainer.devices=2", ends_after(3, "SIGSEGV", 1)])
    words = [sys.executable, "-m", "lockstep.launch.prepared_run", str(folder.path), "train"]
    place = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    place |= {
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_NODEID": "0",
        "SLURM_JOB_NODELIST": "localhost",
    }
    tasks = [
        Command(
            words,
            cwd=tmp_path,
            env={
                **environ(),
                "PYTHONPATH": str(ROOT),
                **place,
                "SLURM_PROCID": rank,
                "SLURM_LOCALID": rank,
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    told = [task.communicate(timeout=PATIENCE_S)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [1, -signal.SIGSEGV], told
    reason = folder.read_status()["reason"]
    assert reason.startswith(f"rank 1 of 2 on {HOST} (pid {tasks[1].pid}) has been silent since ")
    assert reason in told[0]
    assert f'File "{SOURCE}", line {LINE}' in folder.rank_log(1).read_text()


STACK = """Fatal Python error: Segmentation error

Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Thread 0x00007f02 (most recent call first):
  File "/home/me/net.py", line 7 in forward
  File "/home/me/train.py", line 9 in <module>

Extension modules: numpy.core, torch._C (total: 2)
"""


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        # a thread of a library died: where the main thread was
        (STACK, ", in /home/me/net.py:7 (forward)"),
        (
            STACK.replace("Thread 0x00007f01", "Current thread 0x1"),
            ", in /usr/lib/python3.11/threading.py:327 (wait)",
        ),
        (
            STACK.replace("Thread 0x00007f02", "Current thread 0x1"),
            ", in /home/me/net.py:7 (forward)",
        ),
        ("", ""),
    ],
)
def test_failure_place_dead_thread(tmp_path: Path, stack: str, place: str) -> None:
    folder = RunFolder(tmp_path)
    folder.rank_log(3).write_text(stack)
    text = heartbeat.end_of(folder, 3, "rank 3 of 4", -signal.SIGSEGV)
    assert text.splitlines()[0] == f"rank 3 of 4 was ended by SIGSEGV on {HOST}{place}"

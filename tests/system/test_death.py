"""A process that dies by a signal: which rank, which signal, where, in failure.txt, in the status and on the screen."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lockstep.launch import parent, worker
from lockstep.runs import vitals
from lockstep.runs.folder import RunFolder
from tests.support import callbacks, commands
from tests.support.commands import Command, latest
from tests.support.harness import PATIENCE_S, ROOT, SMALL, command, environ, write_run

pytestmark = [pytest.mark.full, pytest.mark.processes]
TOOL = os.fspath(Path(sys.executable).parent / "lockstep")
HOST = socket.gethostname()
SOURCE = ROOT / "tests" / "support" / "callbacks.py"


def dies(how: str, rank: int = 0, seed: str = "null") -> str:
    return f"+callbacks.dies={{_target_:tests.support.callbacks.Dies,how:{how},rank:{rank},seed:{seed}}}"


def line_of(text: str) -> int:
    """The line of the callback that holds a text."""
    return SOURCE.read_text().splitlines().index(text) + 1


def run(cwd: Path, words: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
    more = {"PYTHONPATH": str(ROOT), **variables}
    return commands.run(words, cwd, {**environ(), **more})


def assert_reported(folder: RunFolder, who: str, number: signal.Signals, stderr: str) -> None:
    line = f"{who} was ended by {number.name} on {HOST}"
    what = {"SIGKILL": " (kill -9, or out of memory)"}.get(number.name)
    if what is None:
        place = line_of({"SIGSEGV": "    ctypes.string_at(0)", "SIGABRT": "    os.abort()"}[number.name])
        what = f", in {SOURCE}:{place} ({'reads_nowhere' if number == signal.SIGSEGV else 'aborts'})"
        assert f'File "{SOURCE}", line {place}' in folder.failure.read_text()
    assert folder.failure.read_text().splitlines()[0] == line + what
    assert line + what in stderr
    status = folder.read_status()
    assert (status["state"], status["reason"]) == ("failed", line + what)
    assert folder.heartbeats() == {}


@pytest.mark.parametrize(
    ("num_workers", "rank", "number"),
    [(1, 0, signal.SIGSEGV), (1, 0, signal.SIGKILL), (2, 0, signal.SIGABRT), (2, 1, signal.SIGKILL)],
)
def test_a_rank_that_dies_by_a_signal_is_reported_with_its_source_line(
    tmp_path: Path, num_workers: int, rank: int, number: signal.Signals
) -> None:
    done = run(tmp_path, command(*SMALL, f"trainer.devices={num_workers}", dies(number.name, rank)))
    assert done.returncode == (128 + number if num_workers == 1 else 1), done.stderr
    assert_reported(latest(tmp_path), f"rank {rank} of {num_workers}", number, done.stderr)


def test_a_task_of_srun_that_dies_is_named_by_the_others_and_its_place_is_in_its_log(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [*SMALL, "trainer.devices=2", dies("SIGSEGV", rank=1)])
    words = [sys.executable, "-m", "lockstep.launch.prepared_run", str(folder.path), "--task", "train"]
    place = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    place |= {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "localhost"}
    tasks = [
        Command(
            words,
            cwd=tmp_path,
            env={**environ(), "PYTHONPATH": str(ROOT), **place, "SLURM_PROCID": rank, "SLURM_LOCALID": rank},
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
    assert f'File "{SOURCE}", line {line_of("    ctypes.string_at(0)")}' in folder.rank_log(1).read_text()


def test_a_trial_that_dies_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    number = signal.SIGSEGV
    done = run(tmp_path, command("-m", *SMALL, "trainer.max_epochs=1", dies(number.name, seed="1"), "seed=0,1"))
    assert done.returncode == 1
    (tree,) = tmp_path.glob("outputs/*/*_sweep")
    assert RunFolder(tree / "0").read_status()["state"] == "finished"
    assert_reported(RunFolder(tree / "1"), "the process of the trial", number, done.stderr + done.stdout)


def test_an_evaluation_whose_torch_dies_reports_it(tmp_path: Path) -> None:
    assert run(tmp_path, command(*SMALL, "trainer.max_epochs=1")).returncode == 0
    (tmp_path / "sitecustomize.py").write_text(callbacks.DIES_IN_TORCH)
    variables = {**environ(), "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    words = [TOOL, "eval", "latest"]  # a new process, which reads sitecustomize.py
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert done.stderr.startswith("The process that imports torch for the workers has died")
    assert not list(tmp_path.glob("lockstep-*"))
    assert latest(tmp_path).read_status()["state"] == "finished"


def test_a_killed_fork_server_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fork has the code 255 then: multiprocessing cannot know its own, which may be 255, too."""
    workers = parent.Workers(worker.Job(worker.TRAIN, str(tmp_path), {}), 1, is_parallel=False)
    workers._processes = [SimpleNamespace(exitcode=255)]  # pyright: ignore[reportAttributeAccessIssue]
    assert workers.poll(0.0) == 1
    line = capsys.readouterr().err
    assert line.startswith("The process that started the workers was killed (kill -9, or out of memory)")
    assert "or your code ended one with exit code 255" in line


def test_a_death_that_cannot_be_written_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parent.Workers(worker.Job(worker.TRAIN, str(tmp_path / "gone"), {}), 2, is_parallel=True)._record_death(
        1, -signal.SIGBUS
    )
    assert capsys.readouterr().err == f"rank 1 of 2 was ended by SIGBUS on {HOST}\n"


def test_a_failure_without_a_text_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder(tmp_path).failure.touch()  # by a version that wrote in place, and was killed
    worker.show_failure(worker.Job(worker.TRAIN, str(tmp_path), {}))
    assert capsys.readouterr().err.splitlines()[0] == "a worker failed without an error message"


def test_a_command_without_a_folder_of_its_own_shows_the_own_frames_and_all_of_another_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, job = RunFolder(tmp_path), worker.Job("lockstep.inference.evaluate:evaluate", str(tmp_path), {})
    of_torch, own = f'  File "{torch.__file__}", line 1, in f\n', '  File "/me/net.py", line 7, in forward\n'
    text = f"rank 0 failed:\nTraceback (most recent call last):\n{of_torch}{own}    x['a']\nKeyError: 'a'\n"
    shown = "rank 0 failed:\n  /me/net.py:7 (forward)\n    x['a']\nKeyError: 'a'\n"
    for failure, expected in ((text, shown), (f"rank 1 died\n\n{STACK}", f"rank 1 died\n\n{STACK}")):
        folder.failure.write_text(failure)
        worker.show_failure(job)
        assert capsys.readouterr().err == expected


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
        (STACK, ", in /home/me/net.py:7 (forward)"),  # a thread of a library died: where the main thread was
        (STACK.replace("Thread 0x00007f01", "Current thread 0x1"), ", in /usr/lib/python3.11/threading.py:327 (wait)"),
        (STACK.replace("Thread 0x00007f02", "Current thread 0x1"), ", in /home/me/net.py:7 (forward)"),
        ("", ""),
    ],
)
def test_the_source_line_is_that_of_the_thread_that_died(tmp_path: Path, stack: str, place: str) -> None:
    folder = RunFolder(tmp_path)
    folder.rank_log(3).write_text(stack)
    text = vitals.end_of(folder, 3, "rank 3 of 4", -signal.SIGSEGV)
    assert text.splitlines()[0] == f"rank 3 of 4 was ended by SIGSEGV on {HOST}{place}"
    assert "Extension modules" not in text

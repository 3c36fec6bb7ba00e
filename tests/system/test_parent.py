"""The parent of workers: the signals it forwards, how it ends, and that nothing outlives it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.support.harness import PATIENCE_S, ROOT, environ, wait_until
from tests.support.trainings import children_of, is_alive
from tests.support.workers import PROGRAM

pytestmark = [pytest.mark.full, pytest.mark.processes]


class Parent:
    """A parent in a process group of its own, as in a terminal.

    Its worker prints its process id first.
    """

    def __init__(self, cwd: Path, work: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(work=work)],
            cwd=cwd,
            env={**environ(), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        assert self.process.stdout is not None
        self.stdout: IO[str] = self.process.stdout
        self.worker = int(self.stdout.readline())

    def to_group(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def code(self) -> int:
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


@contextmanager
def started(cwd: Path, work: str = "listens") -> Iterator[Parent]:
    parent = Parent(cwd, work)
    try:
        yield parent
    finally:
        parent.process.kill()
        parent.code()
        wait_until(lambda: not is_alive(parent.worker), "the end of the worker")


def test_ctrl_c_twice(tmp_path: Path) -> None:
    with started(tmp_path) as parent:
        parent.to_group(signal.SIGINT)  # as a terminal does
        assert parent.stdout.readline() == "SIGINT\n"
        assert parent.process.poll() is None
        parent.to_group(signal.SIGINT)
        assert parent.code() == 130


def test_ignored_ctrl_c_twice(tmp_path: Path) -> None:
    """The second Ctrl-C kills a worker that ignores the first one."""
    with started(tmp_path, "ignores") as parent:
        parent.process.send_signal(signal.SIGINT)
        wait_until(lambda: _has_handled(parent.process.pid), "the first one is forwarded")
        parent.process.send_signal(signal.SIGINT)
        assert parent.code() == 130


def _has_handled(pid: int) -> bool:
    """Whether no signal is left for a process to handle."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pending = dict(line.split(":\t") for line in lines if line.startswith(("ShdPnd", "SigPnd")))
    return all(int(mask, 16) == 0 for mask in pending.values())


def test_parent_killed(tmp_path: Path) -> None:
    """The worker and the fork server end with their parent."""
    with started(tmp_path, "ignores") as parent:
        servers = children_of(parent.process.pid)
        parent.process.kill()
        assert parent.code() == -signal.SIGKILL
        wait_until(
            lambda: not any(is_alive(pid) for pid in (parent.worker, *servers)),
            "the end of all processes",
        )


def test_signal_to_every_process(tmp_path: Path) -> None:
    """Scancel sends signals like this.

    The server survives, because it reports the exit codes of the workers.
    """
    with started(tmp_path) as parent:
        for pid in (*children_of(parent.process.pid), parent.worker, parent.process.pid):
            os.kill(pid, signal.SIGTERM)
        assert parent.code() == 75


def test_server_killed(tmp_path: Path) -> None:
    with started(tmp_path) as parent:
        for pid in children_of(parent.process.pid):
            os.kill(pid, signal.SIGKILL)
        assert parent.code() == 1

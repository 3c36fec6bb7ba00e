"""A process that goes on in a fork, and the one that waits for it: as one process to whoever started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep import launch
from lockstep.run_folder import RunFolder
from tests.harness import PATIENCE_S, environ, wait_until
from tests.test_stop import is_alive

pytestmark = pytest.mark.processes
# works until a stop signal other than Ctrl-C; says what it hears
WORKS = """
import os, signal, sys, time
from lockstep import supervision
supervision.begin()
flag = supervision.flag()
flag.install()
print(os.getpid(), flush=True)
said = 0
try:
    while signal.SIGTERM not in flag.numbers:
        if flag.received and not said:
            said = print(signal.Signals(flag.received).name, flush=True) or 1
        time.sleep(0.01)
except KeyboardInterrupt:
    os._exit(130)
os._exit(75)
"""


class Watched:
    """A program that has called `supervision.begin`, in a process group of its own."""

    def __init__(self, program: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], env=environ(), stdout=subprocess.PIPE, text=True, process_group=0
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def code(self) -> int:
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


def test_a_ctrl_c_that_reaches_both_processes_counts_once_and_a_second_leaves() -> None:
    watched = Watched(WORKS)
    assert int(watched.line()) != watched.process.pid
    os.killpg(watched.process.pid, signal.SIGINT)  # as a terminal does
    assert watched.line() == "SIGINT"
    assert watched.process.poll() is None
    os.killpg(watched.process.pid, signal.SIGINT)
    assert watched.code() == 130


def test_a_signal_to_the_waiting_process_is_passed_on_and_so_is_the_exit_code() -> None:
    watched = Watched(WORKS)
    watched.line()
    watched.process.send_signal(signal.SIGTERM)
    assert watched.code() == 75


def test_a_second_ctrl_c_ends_also_a_process_that_does_not_hear_it() -> None:
    deaf = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGQUIT])"
    watched = Watched(WORKS.replace("print(os.getpid()", f"{deaf}; print(os.getpid()"))
    watched.line()
    watched.process.send_signal(signal.SIGINT)
    wait_until(lambda: _is_waiting(watched.process.pid), "the first one is passed on")
    watched.process.send_signal(signal.SIGINT)
    assert watched.code() == 130


def _is_waiting(pid: int) -> bool:
    """Whether no signal is left for a process to handle."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pending = dict(line.split(":\t") for line in lines if line.startswith(("ShdPnd", "SigPnd")))
    return all(int(mask, 16) == 0 for mask in pending.values())


def test_nothing_is_left_when_the_waiting_process_is_killed() -> None:
    watched = Watched(WORKS)
    pid = int(watched.line())
    watched.process.kill()
    assert watched.code() == -signal.SIGKILL
    wait_until(lambda: not is_alive(pid), "the other one gone")


def test_a_process_that_a_debugger_follows_stays_one() -> None:
    watched = Watched("import sys; sys.settrace(lambda *_: None)\n" + WORKS)
    assert int(watched.line()) == watched.process.pid
    watched.process.send_signal(signal.SIGTERM)
    assert watched.code() == 75


def test_a_part_that_calls_sys_exit_is_a_failure_and_no_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves(folder: RunFolder, *args: object) -> int:
        raise SystemExit(3)

    monkeypatch.setattr(launch, "task_function", lambda task: leaves)
    assert launch.run_here(launch.Job("train", str(tmp_path), {}), None) == 1
    text = RunFolder(tmp_path).failure.read_text()
    assert text.startswith("rank 0 of 1 failed:\nTraceback")
    assert text.endswith("SystemExit: 3\n")
    assert RunFolder(tmp_path).read_status()["reason"] == "SystemExit: 3"

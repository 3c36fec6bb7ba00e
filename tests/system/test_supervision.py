"""A process that goes on in a fork, and the one that waits for it: as one process to whoever started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.launch import spawn
from lockstep.runs.folder import RunFolder
from tests.support.harness import PATIENCE_S, environ, wait_until
from tests.support.trainings import is_alive

pytestmark = pytest.mark.processes
# works until a stop signal other than Ctrl-C; says what it hears
WORKS = """
import os, signal, sys, time
from lockstep.launch import supervision
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
    # again until it is seen: the waiting process may not have run since the first, and then two signals are one
    wait_until(lambda: watched.process.poll() is not None or os.killpg(watched.process.pid, signal.SIGINT))
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


@pytest.mark.parametrize("is_to_both", [True, False])
def test_sigquit_leaves_at_once_and_is_not_silent(is_to_both: bool) -> None:
    watched = Watched(WORKS)
    pid = int(watched.line())
    if is_to_both:
        os.killpg(watched.process.pid, signal.SIGQUIT)  # as a terminal does by Ctrl-\\
    else:
        watched.process.send_signal(signal.SIGQUIT)
    assert watched.code() == 130
    assert not is_alive(pid)


# the process that waits comes late to its handlers, as on a busy machine
LATE = """
import time
from lockstep.launch import supervision
wait = supervision._wait
def late(*args):
    time.sleep(1)
    wait(*args)
supervision._wait = late
"""


def test_a_sigquit_before_the_waiting_process_has_its_handlers_is_not_silent() -> None:
    watched = Watched(LATE + WORKS)
    pid = int(watched.line())
    watched.process.send_signal(signal.SIGQUIT)
    assert watched.code() == 130
    assert not is_alive(pid)


# a run of a task that ends well, or by a signal; then the process itself ends by one
DIES = """
import os, signal, sys
from pathlib import Path
from lockstep.launch import spawn, supervision
from lockstep.runs.folder import RunFolder

def work(folder, place, flag):
    if sys.argv[2] == "within":
        os.kill(os.getpid(), signal.SIGSEGV)
    folder.update_status(state="finished", reason="")
    return 0

supervision.begin()
spawn.task_function = lambda task: work
supervision.run(spawn.Job("train", sys.argv[1], {}), None, supervision.flag())
os.kill(os.getpid(), signal.SIGSEGV)
"""


def ends(program: str, *words: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-c", program, *words]
    return subprocess.run(line, env=environ(), capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_finished_run_stays_finished_whatever_becomes_of_its_process(tmp_path: Path) -> None:
    done = ends(DIES, str(tmp_path), "after")
    assert done.returncode == 128 + signal.SIGSEGV
    assert done.stderr == "lockstep: ended by SIGSEGV\n"
    folder = RunFolder(tmp_path)
    assert folder.read_status()["state"] == "finished"
    assert not folder.failure.exists()


def test_the_folder_of_a_training_that_died_is_kept_also_without_its_configuration(tmp_path: Path) -> None:
    done = ends(DIES, str(tmp_path), "within")
    assert done.returncode == 128 + signal.SIGSEGV
    assert "was ended by SIGSEGV" in RunFolder(tmp_path).failure.read_text()
    assert "was ended by SIGSEGV" in done.stderr


def test_a_process_that_a_debugger_follows_stays_one() -> None:
    watched = Watched("import sys; sys.settrace(lambda *_: None)\n" + WORKS)
    assert int(watched.line()) == watched.process.pid
    watched.process.send_signal(signal.SIGTERM)
    assert watched.code() == 75


def test_a_part_that_calls_sys_exit_is_a_failure_and_no_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves(folder: RunFolder, *args: object) -> int:
        raise SystemExit(3)

    monkeypatch.setattr(spawn, "task_function", lambda task: leaves)
    assert spawn.run_here(spawn.Job("train", str(tmp_path), {}), None) == 1
    text = RunFolder(tmp_path).failure.read_text()
    assert text.startswith("rank 0 of 1 failed:\nTraceback")
    assert text.endswith("SystemExit: 3\n")
    assert RunFolder(tmp_path).read_status()["reason"] == "SystemExit: 3"


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "code", "said"),
    [
        ("flag = SignalFlag(); flag.install(); print(flag.numbers)", 0, "[15]\n"),
        ("as_usual()", -signal.SIGTERM, ""),
    ],
)
def test_a_signal_in_the_moment_before_somebody_takes_it_over_is_not_lost(taken: str, code: int, said: str) -> None:
    done = ends(
        "import signal, sys, threading, time\n"
        "from lockstep.system.signals import SignalFlag, as_usual, end_at_once\n"
        "end_at_once()\n"
        "time.sleep(1)\n"  # the thread that listens has begun to
        "sys.setswitchinterval(1000)\n"  # and does not come to it
        # unlike raise_signal, this lets no other thread run meanwhile
        f"signal.pthread_kill(threading.get_ident(), signal.SIGTERM); {taken}\n"
    )
    assert (done.returncode, done.stdout) == (code, said), done.stderr


def test_a_task_that_did_not_hear_its_first_signal_ends_by_the_second() -> None:
    done = ends(
        "import signal, time\n"
        "from lockstep.system.signals import TWICE_S, SignalEnd\n"
        "class Deaf:\n"
        "    def __del__(self):\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "SignalEnd().install()\n"
        "deaf = Deaf()\n"
        "del deaf\n"
        "signal.raise_signal(signal.SIGTERM)\n"  # the same one, by another way
        "time.sleep(2 * TWICE_S)\n"
        "print('works', flush=True)\n"
        "signal.raise_signal(signal.SIGINT)\n"
    )
    assert (done.returncode, done.stdout) == (130, "works\n")
    assert done.stderr.endswith("lockstep: ended by SIGINT\n")

"""A process that goes on in a fork, or stands by for work, and the one that waits: as one to whoever started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.config import compose, validation
from lockstep.launch import runner, spawn, supervision
from lockstep.runs.folder import EXIT_STOPPED, RunFolder
from lockstep.system.signals import SignalList
from tests.support.harness import PATIENCE_S, SMALL, environ, wait_until
from tests.support.trainings import is_alive

pytestmark = pytest.mark.processes
# works until a stop signal other than Ctrl-C; says what it hears
WORK = """
import os, signal, sys, time
from lockstep.launch import preload, supervision
preload.import_training = lambda: None

def work():
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
    return 75

"""
# the work goes on in a fork, or is handed over to one that stands by
WORKS = {
    "begin": WORK + "supervision.begin(); os._exit(work())",
    "stand_by": WORK + "supervision.stand_by(); os._exit(supervision.hand_over(work))",
}
both_ways = pytest.mark.parametrize("works", WORKS.values(), ids=WORKS)


class Watched:
    """A program whose work is done by another process, in a process group of its own."""

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


@both_ways
def test_a_ctrl_c_that_reaches_both_processes_counts_once_and_a_second_leaves(works: str) -> None:
    watched = Watched(works)
    assert int(watched.line()) != watched.process.pid
    os.killpg(watched.process.pid, signal.SIGINT)  # as a terminal does
    assert watched.line() == "SIGINT"
    assert watched.process.poll() is None
    # again until it is seen: the waiting process may not have run since the first, and then two signals are one
    wait_until(lambda: watched.process.poll() is not None or os.killpg(watched.process.pid, signal.SIGINT))
    assert watched.code() == 130


@both_ways
def test_a_signal_to_the_waiting_process_is_passed_on_and_so_is_the_exit_code(works: str) -> None:
    watched = Watched(works)
    watched.line()
    watched.process.send_signal(signal.SIGTERM)
    assert watched.code() == 75


@both_ways
def test_a_second_ctrl_c_ends_also_a_process_that_does_not_hear_it(works: str) -> None:
    deaf = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGQUIT])"
    watched = Watched(works.replace("print(os.getpid()", f"{deaf}; print(os.getpid()"))
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


@both_ways
def test_nothing_is_left_when_the_waiting_process_is_killed(works: str) -> None:
    watched = Watched(works)
    pid = int(watched.line())
    watched.process.kill()
    assert watched.code() == -signal.SIGKILL
    wait_until(lambda: not is_alive(pid), "the other one gone")


@both_ways
@pytest.mark.parametrize("is_to_both", [True, False])
def test_sigquit_leaves_at_once_and_is_not_silent(works: str, is_to_both: bool) -> None:
    watched = Watched(works)
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
    return wait(*args)
supervision._wait = late
"""


@both_ways
def test_a_sigquit_before_the_waiting_process_has_its_handlers_is_not_silent(works: str) -> None:
    watched = Watched(LATE + works)
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
    alone = "supervision.stand_by(); assert not supervision.has_standby(); supervision.begin(); os._exit(work())"
    watched = Watched("import sys; sys.settrace(lambda *_: None)\n" + WORK + alone)
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


# -- a process that stands by ------------------------------------------------------------------------------------------

STANDS_BY = "import os, signal, sys\nfrom lockstep.launch import preload, supervision\n"
IDLE = STANDS_BY + "preload.import_training = lambda: None\nsupervision.stand_by()\n"


def test_work_that_is_handed_over_knows_where_it_is_and_returns_what_it_found(tmp_path: Path) -> None:
    done = ends(
        "def work():\n"
        "    return os.getpid(), os.getcwd(), sys.path[-1], sys.argv[-1], supervision.is_watched()\n"
        f"{IDLE}"
        f"os.chdir({str(tmp_path)!r}); sys.path.append('later'); sys.argv.append('word')\n"
        "pid, *found = supervision.hand_over(work)\n"
        "assert pid != os.getpid()\n"
        "print(found)\n"
    )
    assert done.stdout == f"{[str(tmp_path), 'later', 'word', True]}\n", done.stderr


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("sys.exit(2)", 2, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV, "lockstep: ended by SIGSEGV\n"),
    ],
)
def test_work_without_a_result_ends_both_processes_as_it_ends(end: str, code: int, said: str) -> None:
    done = ends(f"def work(): {end}\n{IDLE}supervision.hand_over(work)\nprint('goes on')\n")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.endswith(said)


def test_what_was_said_before_comes_before_and_nothing_is_lost_in_a_failure() -> None:
    buffered = "import sys\nsys.stdout = open(1, 'w', closefd=False)\n"  # whatever PYTHONUNBUFFERED says here
    work = "def work():\n    print('work')\n    1 / 0\n"
    done = ends(f"{buffered}{work}{IDLE}print('check')\nsupervision.hand_over(work)\n")
    assert (done.returncode, done.stdout) == (1, "check\nwork\n")


def test_a_crash_after_the_work_is_in_the_exit_code() -> None:
    crashes = "    import atexit\n    atexit.register(os.kill, os.getpid(), signal.SIGSEGV)\n    return 0\n"
    done = ends(f"def work():\n{crashes}{IDLE}supervision.hand_over(work)\nprint('goes on')\n")
    assert (done.returncode, done.stdout) == (128 + signal.SIGSEGV, "")


def test_a_process_that_died_while_it_stood_by_is_told_and_not_waited_for() -> None:
    kill = "os.kill(supervision._standby.pid, signal.SIGKILL); os.waitid(os.P_PID, supervision._standby.pid, {})\n"
    seen = kill.format("os.WEXITED | os.WNOWAIT")
    done = ends(f"def work(): return 0\n{IDLE}{seen}supervision.hand_over(work)\nprint('goes on')\n")
    assert (done.returncode, done.stdout) == (128 + signal.SIGKILL, "")
    assert done.stderr == "lockstep: ended by SIGKILL\n"


def test_what_cannot_be_imported_ahead_is_left_to_the_work() -> None:
    fails = f"{STANDS_BY}def fails(): raise ImportError('broken')\npreload.import_training = fails\n"
    done = ends(f"def work(): return 7\n{fails}supervision.stand_by()\nprint(supervision.hand_over(work))\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")


def test_a_process_that_is_not_needed_or_has_other_variables_is_gone() -> None:
    done = ends(
        f"{IDLE}"
        "pids = [supervision._standby.pid]\n"
        "supervision.dismiss()\n"
        "supervision.dismiss()\n"  # there is none
        "supervision.stand_by()\n"
        "pids.append(supervision._standby.pid)\n"
        "assert supervision.has_standby()\n"
        "os.environ['OMP_NUM_THREADS'] = '17'\n"  # as torch reads it when it is imported
        "assert not supervision.has_standby() and not supervision.is_watched()\n"
        "print(*[os.path.exists(f'/proc/{pid}') for pid in pids])\n"
    )
    assert done.stdout == "False False\n", done.stderr


def test_a_process_that_stands_by_holds_signals_back() -> None:
    done = ends(
        f"{IDLE}import time\n"
        "os.kill(supervision._standby.pid, signal.SIGTERM)\n"
        "os.kill(supervision._standby.pid, signal.SIGINT)\n"
        "time.sleep(1)\n"  # it would have died
        "print(os.waitpid(supervision._standby.pid, os.WNOHANG))\n"
    )
    assert (done.stdout, done.stderr) == ("(0, 0)\n", "")


BEGINS = "import time\nfrom lockstep.system import signals\nsignals.end_at_once()\n"
TELLS = "print(supervision._standby.pid, flush=True)\n"
WORKS_DEAF = "def work():\n    print(os.getpid(), flush=True)\n    time.sleep(600)\n"


@pytest.mark.parametrize(
    "program",
    [
        f"{BEGINS}{IDLE}{TELLS}time.sleep(600)\n",
        f"{BEGINS}{STANDS_BY}preload.import_training = lambda: time.sleep(600)\n"
        f"supervision.stand_by()\n{TELLS}supervision.hand_over(print)\n",
        f"{BEGINS}{WORKS_DEAF}{IDLE}supervision.hand_over(work)\n",
    ],
    ids=["in the check", "in the imports", "before there is a run"],
)
def test_a_signal_before_there_is_a_run_ends_both_processes_and_only_one_speaks(program: str) -> None:
    line = [sys.executable, "-c", program]
    with subprocess.Popen(
        line, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert err == "lockstep: ended by SIGINT, no run is under way\n"
    wait_until(lambda: not is_alive(pid), "the other one gone")


def test_a_process_that_work_leaves_behind_is_not_waited_for() -> None:
    done = ends(
        "import time\n"
        "def work():\n"
        "    left = os.fork()\n"
        "    if left == 0:\n"
        "        os.closerange(0, 3)\n"
        "        time.sleep(600)\n"
        "    print(left, flush=True)\n"
        "    sys.exit(2)\n"
        f"{IDLE}supervision.hand_over(work)\n"
    )
    assert done.returncode == 2
    assert is_alive(int(done.stdout))  # and has the pipes
    os.kill(int(done.stdout), signal.SIGKILL)


def test_a_process_that_passes_signals_on_passes_on_once_what_reaches_it_twice() -> None:
    done = ends(
        "import signal\n"
        "from lockstep.system.signals import LEAVE, SignalList\n"
        "for is_watched in (False, True):\n"
        "    listed = SignalList(is_watched=is_watched)\n"
        "    listed.install()\n"
        "    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM, LEAVE):\n"
        "        signal.raise_signal(number)\n"
        "    print(*(signal.Signals(number).name for number in listed.numbers))\n"
    )
    assert done.stdout == "SIGINT SIGINT SIGTERM SIGQUIT\nSIGINT SIGTERM SIGQUIT\n", done.stderr


def test_workers_of_a_process_that_is_waited_for_are_told_once_what_it_hears_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []

    def run_workers(job: spawn.Job, num_workers: int, listed: SignalList, *, uses_gpus: bool) -> int:
        for _ in range(2):  # from the terminal, and from the process that waits
            signal.raise_signal(signal.SIGINT)
        heard.extend(listed.numbers)
        return EXIT_STOPPED

    monkeypatch.setattr(supervision, "is_watched", lambda: True)
    monkeypatch.setattr(spawn, "run_workers", run_workers)
    config = validation.checked(compose.composed([*SMALL, "trainer.devices=2", "silent=true"]))
    assert runner.start(config, [], tmp_path / "run")[1] == EXIT_STOPPED
    assert heard == [signal.SIGINT]


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

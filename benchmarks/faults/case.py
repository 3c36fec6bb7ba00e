"""Try one fault.

A training is started, a process gets a signal at a moment, and the end of the training is checked.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from lockstep.runs.folder import RunFolder

ROOT = Path(__file__).parents[2]
TARGETS = ("parent", "rank 0", "last rank")
MOMENTS = ("first second", "step", "validation", "checkpoint", "test")
SIGNALS = ("TERM", "INT", "USR1", "HUP", "KILL", "STOP")
# the command is importing Hydra, or composing; on a busy machine Python may still be starting
FIRST_MOMENT_S = 0.5
TIMEOUT_S = 30.0  # of the collectives: a frozen worker is noticed after it
PATIENCE_S = 300.0  # for what must come
STEPS_PER_EPOCH = 6
VARIABLE = "LOCKSTEP_FAULT"  # names the folder of a case in all its processes
RECIPE = (
    "strategy=cpu",
    f"strategy.timeout_s={TIMEOUT_S:g}",
    "data=synthetic",
    f"data.train_size={16 * STEPS_PER_EPOCH}",
    "data.val_size=32",
    "data.test_size=32",
    "global_batch_size=16",
    "eval_batch_size=16",
    "model.width=4",
    "trainer.max_epochs=3",
    "callbacks.pictures=null",
)


class Case(NamedTuple):
    """Who gets which signal when, in a training by how many processes."""

    signal: str
    target: str
    moment: str
    num_processes: int


class Outcome(NamedTuple):
    """How a case ended. `step` is that of the newest checkpoint, None where there is none."""

    exit_code: int
    state: str
    reason: str
    step: int | None
    # from the signal, or from SIGCONT where `is_continued`, to the end of the last process
    seconds: float
    is_continued: bool  # frozen until SIGCONT, which only the user can send
    num_left: int  # processes that were alive a while after the command had ended
    has_traceback: bool  # on the screen


def all_cases() -> Iterator[Case]:
    """Every case; the last rank of one is rank 0."""
    for num_processes in (1, 2, 3):
        for target in TARGETS if num_processes > 1 else TARGETS[:2]:
            for name in SIGNALS:
                for moment in MOMENTS:
                    yield Case(name, target, moment, num_processes)


def run(case: Case, folder: Path) -> Outcome:
    """Produce a case in an empty folder."""
    with _training(case, folder) as process:
        pid = _await_moment(case, folder, process)
        number = signal.Signals[f"SIG{case.signal}"]
        os.kill(pid, number)
        begin = time.monotonic()
        # on a busy machine it takes a while to die, in which the others would go on
        if number == signal.SIGKILL:
            _wait(lambda: pid not in _alive(folder), PATIENCE_S)
        (folder / "delivered").touch()
        is_continued = number == signal.SIGSTOP and not _ends(process, 2 * TIMEOUT_S)
        if is_continued:
            os.kill(pid, signal.SIGCONT)
            begin = time.monotonic()
        process.wait(PATIENCE_S)
        _wait(lambda: not _alive(folder), 30.0)
        seconds = time.monotonic() - begin
        left = _alive(folder)
    return _outcome(folder, process.returncode, seconds, is_continued, len(left))


@contextmanager
def _training(case: Case, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    rank = case.num_processes - 1 if case.target == "last rank" else 0
    at = case.moment.replace(" ", "-")
    moment = f"+callbacks.moment={{_target_:benchmarks.faults.moment.Moment,at:{at}"
    overrides = (
        *RECIPE,
        f"trainer.devices={case.num_processes}",
        f"{moment},rank:{rank},folder:'{folder}'}}",
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", VARIABLE: str(folder)}
    with open(folder / "terminal.log", "wb") as log:
        process = subprocess.Popen(
            # a hangup as in a terminal, also where the table is made under nohup
            ["env", "--default-signal=HUP", sys.executable, str(ROOT / "train.py"), *overrides],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for pid in _alive(folder):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def _await_moment(case: Case, folder: Path, process: subprocess.Popen[bytes]) -> int:
    """Return the process that gets the signal, when its moment has come."""
    rank = case.num_processes - 1 if case.target == "last rank" else 0
    if case.moment != "first second":
        _wait((folder / "reached").exists, PATIENCE_S, process)
        return process.pid if case.target == "parent" else int((folder / f"pid-{rank}").read_text())
    if case.target == "parent":
        time.sleep(FIRST_MOMENT_S)
        _wait(lambda: _is_heard(process.pid), PATIENCE_S, process)
        return process.pid
    pids: list[int] = []
    _wait(lambda: bool(pids.extend(_of_rank(process.pid, rank)) or pids), PATIENCE_S, process)
    return pids[0]


def _is_heard(pid: int) -> bool:
    """Return whether a process has a handler for SIGTERM.

    In the first moments of Python itself, any signal ends it.
    """
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def _of_rank(command: int, rank: int) -> list[int]:
    """Return the process of a rank.

    The fork server forks the ranks in order, and each first starts a thread. While it imports, the
    server starts other programs, too.
    """
    servers = [pid for pid in _children(command) if _is_of_server(pid)]
    forks = [
        pid
        for server in servers
        for pid in _children(server)
        if _is_of_server(pid) and _num_threads(pid) > 1
    ]
    return forks[rank : rank + 1]


def _is_of_server(pid: int) -> bool:
    return "multiprocessing.forkserver" in _command_line(pid)


def _num_threads(pid: int) -> int:
    with contextlib.suppress(OSError):  # it has ended since
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):  # it has ended since
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    return []


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _alive(folder: Path) -> list[int]:
    """Return processes of the case in `folder` of which a thread still runs, or is frozen."""
    pids = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # no process, or one that has ended since
            if f"{VARIABLE}={folder}".encode() not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z" or int(fields[17]) > 1:
                pids.append(int(entry.name))
    return sorted(pids)


def _ends(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _wait(
    holds: Callable[[], bool], timeout_s: float, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Return when `holds()`, or after `timeout_s`.

    Raises if `process` has to live until then, and does not.
    """
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            raise RuntimeError(
                f"The training ended with code {process.returncode} before the fault was delivered."
            )
        time.sleep(0.01)
    if process is not None and not holds():
        raise TimeoutError(f"The moment of the fault did not come within {timeout_s:g} s.")


def _outcome(folder: Path, code: int, seconds: float, is_continued: bool, num_left: int) -> Outcome:
    latest = folder / "outputs" / "latest"
    run_folder = RunFolder(latest.resolve())
    status = run_folder.read_status() if latest.exists() else {}
    step = None
    if latest.exists() and run_folder.last_checkpoint.exists():
        step = torch.load(run_folder.last_checkpoint, map_location="cpu", weights_only=True)[
            "global_step"
        ]
    return Outcome(
        exit_code=code,
        state=status.get("state", "no run"),
        reason=status.get("reason", ""),
        step=step,
        seconds=seconds,
        is_continued=is_continued,
        num_left=num_left,
        has_traceback="Traceback" in (folder / "terminal.log").read_text(errors="replace"),
    )

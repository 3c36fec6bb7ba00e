"""Trainings in processes of their own, to be signalled."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.runs.folder import RunFolder
from tests.support.harness import PATIENCE_S, command, environ, wait_until


class Training:
    """A `python train.py` in a folder of its own, and the processes it started."""

    def __init__(self, cwd: Path, *overrides: str, hangup: signal.Handlers = signal.SIG_DFL) -> None:
        self.cwd = cwd
        self.log = cwd / "terminal.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command(*overrides),
                cwd=cwd,
                env=environ(),
                stdout=log,
                stderr=subprocess.STDOUT,
                # as in a terminal, also where the tests run under nohup
                preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup) and None,
            )

    @property
    def folder(self) -> RunFolder:
        return RunFolder((self.cwd / "outputs" / "latest").resolve())

    def wait_for_step(self, step: int) -> None:
        def is_there() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            status = self.folder.read_status()
            return status.get("state") in ("training", "validating") and status["step"] >= step

        wait_until(is_there, f"step {step}")

    def workers(self) -> list[int]:
        """Process ids of rank 0, 1, ..."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE_S)


@contextmanager
def training(cwd: Path, *overrides: str, hangup: signal.Handlers = signal.SIG_DFL) -> Iterator[Training]:
    started = Training(cwd, *overrides, hangup=hangup)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def is_alive(pid: int) -> bool:
    """Whether a process has not ended, with all its threads: until the last one is gone it holds its files."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return False
    return state != "Z" or int(fields[16]) > 1

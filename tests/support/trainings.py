"""Trainings that tests send signals to."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lockstep.runs.folder import RunFolder
from tests.support.commands import Command
from tests.support.harness import PATIENCE_S, command, environ, wait_until


class Training:
    """A `python train.py` in a folder, and its workers."""

    def __init__(self, cwd: Path, *overrides: str, ignores_hangups: bool = False) -> None:
        self.cwd = cwd
        self.log = cwd / "terminal.log"
        with open(self.log, "ab") as log:
            pipes: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT}
            self.process: subprocess.Popen[Any] | Command = (
                subprocess.Popen(["nohup", *command(*overrides)], cwd=cwd, env=environ(), **pipes)
                if ignores_hangups
                else Command(command(*overrides), cwd, **pipes)
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
        """Process ids by rank, of workers that have started."""
        texts = (path.read_text().split() for _, path in sorted(self.folder.heartbeats().items()))
        return [int(fields[1]) for fields in texts if fields]

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE_S)


@contextmanager
def training(cwd: Path, *overrides: str, ignores_hangups: bool = False) -> Iterator[Training]:
    started = Training(cwd, *overrides, ignores_hangups=ignores_hangups)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def children_of(pid: int) -> list[int]:
    """Children of the main thread of a process, the oldest first."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    """True until the last thread of a process has ended: until then it holds its files."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # It can also end between open and read.
        return False
    return state != "Z" or int(fields[16]) > 1

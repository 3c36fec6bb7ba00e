"""Trials as forks of one process that has imported torch and Lightning: the import is most of a short trial.

CUDA's driver works in no fork of a process that has started it. No import does so; where one does, on some machine,
trials on GPUs are not made here. Modules of the user are imported in the trial itself.
"""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

from lockstep.launch import runner
from lockstep.launch.forking import set_variables
from lockstep.runs.folder import EXIT_FAILED
from lockstep.runs.naming import shown
from lockstep.system.process import die_with, leave
from lockstep.system.signals import held_back
from lockstep.system.title import set_title

PRELOADED = "lockstep.sweeps.preloaded"


class Forked:
    """A trial that was forked; it answers like `subprocess.Popen`."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    @property
    def sentinel(self) -> int:
        """A descriptor that can be read when the trial has ended."""
        return self._process.sentinel

    def poll(self) -> int | None:
        """The exit code of the trial, or its signal as a negative number; None while it runs."""
        return self._process.exitcode

    def wait(self) -> int | None:
        """Wait until the trial has ended. Returns what `poll` does."""
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to the trial, unless it has ended."""
        if self.poll() is None and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End the trial at once by SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A process to fork trials from. It dies with this one, and its trials with it."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([PRELOADED])
        self._is_ready = threading.Event()
        self._has_begun = False
        self.serves_gpus = False  # whether trials may use CUDA; known when it is ready

    def is_ready(self) -> bool:
        """Whether a trial can start at once. The first call begins to import, which takes seconds."""
        if not self._has_begun:
            self._has_begun = True
            with held_back():
                forkserver.ensure_running()  # by this thread: it dies with the one that started it
                # the first fork waits for the imports: not in the thread that draws, and hears Ctrl-C
                threading.Thread(target=self._wait, daemon=True).start()
        return self._is_ready.is_set()

    def start(self, folder: Path, task: str, cores: tuple[int, ...], environ: Mapping[str, str], log: Path) -> Forked:
        """Do a task of `lockstep.launch.runner` on a run folder, with what it says in a file.

        On these cores alone, where there are any. `environ` holds the GPUs it may see: CUDA reads that when it starts.
        """
        process = self._context.Process(target=_do, args=(folder, task, cores, dict(environ), log))
        process.start()
        return Forked(process)

    def _wait(self) -> None:
        process = self._context.Process(target=_exit_by_cuda)
        try:
            process.start()
            process.join()
            self.serves_gpus = process.exitcode == 0
        finally:
            self._is_ready.set()  # where that failed, the start of a trial tells why


def _exit_by_cuda() -> None:
    """What the first fork does, when the imports are done: its exit code is 0 where CUDA works in forks, else 1."""
    from lockstep.sweeps import preloaded
    from lockstep.system import internals

    sys.exit(int(preloaded.HAS_STARTED_CUDA or internals.is_in_bad_fork()))


def _do(folder: Path, task: str, cores: tuple[int, ...], environ: dict[str, str], log: Path) -> None:
    os.setpgid(0, 0)  # Ctrl-C reaches the sweep alone, which passes it on
    die_with(os.getppid())
    sweep = multiprocessing.parent_process()
    if sweep is None or not sweep.is_alive():
        os._exit(EXIT_FAILED)
    with log.open("ab") as file:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if cores:
        os.sched_setaffinity(0, cores)
    set_variables(environ)
    set_title(f"lockstep: trial {shown(folder)}")
    atexit._clear()  # what the imports registered is of the process that forks
    leave(lambda: runner.do(folder, task))

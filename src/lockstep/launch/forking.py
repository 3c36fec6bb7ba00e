"""How a process that computes begins: as a fork of one that has imported torch, or as a new interpreter.

A fork begins at once, where imports take seconds. It is safe while the process that forks has one thread, for a fork
has the locks of the others in whatever state they were, and while CUDA's driver has not been started, which works in no
fork. On macOS, libraries of the system may crash after a fork. `can_fork` decides, for whoever starts processes.
"""

import contextlib
import gc
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import process
from pathlib import Path
from typing import Any, NoReturn, Protocol

from lockstep.runs.folder import EXIT_FAILED
from lockstep.system import signals
from lockstep.system.hardware import has_started_cuda
from lockstep.system.title import set_title

HAS_FORK = sys.platform == "linux"


class Process(Protocol):
    """A process that was started: what `subprocess.Popen` and `Forked` have in common."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """The exit code, or a signal as a negative number; None before that was asked for after its end."""
        ...

    def poll(self) -> int | None:
        """The exit code if the process has ended."""
        ...

    def wait(self) -> int:
        """The exit code, when the process has ended."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless the process has ended."""
        ...

    def kill(self) -> None:
        """End the process at once."""
        ...


def can_fork(*, uses_gpus: bool) -> bool:
    """Whether forks of this process can compute on a CPU. On GPUs workers are new processes, until forks are shown.

    A debugger follows the process it knows, and none that are forked from it.
    """
    return HAS_FORK and not uses_gpus and sys.gettrace() is None and not _has_threads() and not has_started_cuda()


def _has_threads() -> bool:
    """Whether a fork would be one of a process with threads, also of libraries, which Python does not know."""
    if threading.active_count() == 1 and _num_threads() > 1:
        # the BLAS of numpy ends its threads where its process forks, and starts them again with its next work
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return _num_threads() > 1


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


class Forked:
    """A fork of this process; it answers like `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code if the process has ended."""
        return self._ended(os.WNOHANG)

    def wait(self) -> int:
        """The exit code, when the process has ended."""
        code = self._ended(0)
        assert code is not None
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def await_end(processes: Sequence[Process], most_s: float) -> None:
    """Sleep for `most_s`, or until one of the processes has ended; where the kernel cannot tell, for `most_s`."""
    if any(process.returncode is not None for process in processes):
        return
    with contextlib.ExitStack() as opened:
        ends = select.poll()
        try:
            for process in processes:
                descriptor = os.pidfd_open(process.pid)
                opened.callback(os.close, descriptor)
                ends.register(descriptor, select.POLLIN)
        except (AttributeError, OSError):  # not Linux, or Linux before 5.3, or a container that forbids it
            time.sleep(most_s)
            return
        ends.poll(1000 * most_s)


def start(
    words: Sequence[str], environ: Mapping[str, str], *, log: Path | None, message: str = ""
) -> subprocess.Popen[bytes]:
    """A new interpreter, `python -m` and `words`, in a process group of its own: Ctrl-C reaches its parent alone.

    Its standard input is `message`, in a file without a name: a command line has a limit, and all users of the machine
    can read it. It writes to the end of `log` where there is one. Stop signals are held back until it has handlers for
    them: one in its first moments is neither lost nor deadly.
    """
    with signals.blocked(), contextlib.ExitStack() as opened:
        stdin = opened.enter_context(tempfile.TemporaryFile())
        stdin.write(message.encode())
        stdin.seek(0)
        file = opened.enter_context(open(log, "ab")) if log is not None else None
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            env=environ,
            stdin=stdin,
            stdout=file,
            stderr=subprocess.STDOUT if file is not None else None,
            process_group=0,
        )


def _nothing() -> None:
    """For a fork that has nothing to do at first."""


def fork(
    work: Callable[[], int],
    environ: Mapping[str, str],
    *,
    log: Path | None,
    title: str,
    first: Callable[[], None] = _nothing,
) -> Forked:
    """Do `work` in a fork, which leaves with what that returns. The fork is like a new process of these variables.

    It is in a process group of its own, has no standard input, and writes to `log` where there is one. Stop signals
    that are held back stay so. A new process would get its threads from OMP_NUM_THREADS, which torch has read here.
    `first` is called while it has one thread: torch starts others where it is told how many to use.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # what is shared with the fork is not touched, and so not copied, by its garbage collection
    pid = os.fork()
    if pid == 0:
        _begin(work, environ, log, title, first)
    with contextlib.suppress(OSError):  # the fork does it, too: whoever is first
        os.setpgid(pid, pid)
    return Forked(pid)


def _begin(
    work: Callable[[], int], environ: Mapping[str, str], log: Path | None, title: str, first: Callable[[], None]
) -> NoReturn:
    code = EXIT_FAILED
    try:
        os.setpgid(0, 0)
        _redirect(log)
        signals.as_new()
        set_title(title)
        _forget_server()
        set_variables(environ, first)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        remove_temporary()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # nothing of the process that forks is cleaned up here


def _forget_server() -> None:
    """What multiprocessing holds of the process that forks: its folder for sockets, and its server to fork from.

    A fork can neither wait for that server nor remove that folder. It gets its own of both when it asks for them.
    """
    _settings().pop("tempdir", None)
    forkserver = sys.modules.get("multiprocessing.forkserver")
    if forkserver is not None:
        server = forkserver._forkserver
        if server._forkserver_alive_fd is not None:
            os.close(server._forkserver_alive_fd)  # the server lives as long as somebody has this file
        server.__init__()


def remove_temporary() -> None:
    """Remove the folder of multiprocessing's sockets: this process leaves without what is registered for its exit."""
    folder = _settings().pop("tempdir", None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _settings() -> dict[str, Any]:
    return process.current_process()._config  # pyright: ignore[reportAttributeAccessIssue]


def _redirect(log: Path | None) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)


def set_variables(environ: Mapping[str, str], first: Callable[[], None] = _nothing) -> None:
    """Give a fork its variables, those that torch has read before included, and random numbers of its own.

    `first` is called when it has them, and before torch starts threads by them.
    """
    is_read = "OMP_NUM_THREADS" in os.environ  # by torch, while it was imported
    os.environ.clear()
    os.environ.update(environ)
    first()
    if "torch" in sys.modules:
        import numpy as np
        import torch

        np.random.seed()  # Python's own generator is seeded anew in every fork
        if not is_read and "OMP_NUM_THREADS" in environ:
            torch.set_num_threads(int(environ["OMP_NUM_THREADS"]))

"""A child process that calls a function, and lives no longer than its parent.

It has its own variables, cores and output.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

from lockstep.runs.files import open_to_append
from lockstep.runs.folder import EXIT_FAILED
from lockstep.system import output, processes
from lockstep.system.signals import run_exit_functions
from lockstep.system.terminal import debug


def start(
    work: Callable[[], int],
    environ: Mapping[str, str],
    *,
    log: Path | None = None,
    cores: Sequence[int] = (),
    has_input: bool = False,
) -> BaseProcess:
    """Start a process that calls `work`, which must be picklable, and exits with its code.

    It prints where this process prints, or to the end of `log`. If `has_input`, it has the standard
    input of this process, for `breakpoint()`. It dies with this process. Its stop signals are
    blocked until it installs handlers.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    numbers = (0, 1, 2) if has_input and sys.stdin is not None else (1, 2)
    files = {number: Connection(os.dup(number)) for number in numbers}
    # The type of a context lacks `Process`.
    process = processes.context().Process(  # pyright: ignore[reportAttributeAccessIssue]
        target=_main, args=(work, dict(environ), cores, files, log)
    )
    process.start()
    for connection in files.values():
        connection.close()
    return process


def _main(
    work: Callable[[], int],
    environ: Mapping[str, str],
    cores: Sequence[int],
    files: Mapping[int, Connection],
    log: Path | None,
) -> NoReturn:
    code = EXIT_FAILED
    try:
        threading.Thread(target=_die_with_parent, daemon=True).start()
        processes.share_server()
        processes.restrict_umask()  # A notebook keeps its umask.
        _redirect(files, log)
        if cores:
            os.sched_setaffinity(0, cores)
        _take_variables(environ)
        if 0 in files and "PYTHONBREAKPOINT" not in environ:
            sys.breakpointhook = debug
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        run_exit_functions()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Threads of a broken process group must not keep a failed worker alive.


def _die_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(EXIT_FAILED)


def _redirect(files: Mapping[int, Connection], log: Path | None) -> None:
    for number, connection in files.items():
        os.dup2(connection.fileno(), number)
        connection.close()
    if log is not None:
        with open_to_append(log) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    if 0 in files:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for number, stream_name in enumerate(("stdout", "stderr"), 1):
        if getattr(sys, stream_name) is None:  # It was closed in the server.
            setattr(sys, stream_name, open(number, "w", closefd=False))  # noqa: SIM115
        getattr(sys, stream_name).reconfigure(line_buffering=True)
    output.outlive()


def _take_variables(environ: Mapping[str, str]) -> None:
    """Set the variables of the parent, and a new seed for NumPy.

    The number of threads is also set if torch has already read it in the server.
    """
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ.clear()
    os.environ.update(environ)
    if "torch" in sys.modules:
        import numpy as np
        import torch

        np.random.seed()  # Python seeds its own generator in every fork.
        if (threads := environ.get("OMP_NUM_THREADS")) and threads != before:
            torch.set_num_threads(int(threads))

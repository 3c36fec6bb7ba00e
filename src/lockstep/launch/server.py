"""What multiprocessing's fork server imports, once, for all processes that are forked from it; imported there alone.

It survives signals to the group of its command: it leaves the session, and blocks them, also for its forks until they
have handlers. It never starts CUDA, which would then work in no fork.
"""

import atexit
import gc
import os
import shutil
import signal

from lockstep.system import processes
from lockstep.system.signals import LEAVE, STOP_SIGNALS


def _remove(folder: str, pid: int) -> None:
    """Remove the folder of sockets of the command, which may have been killed; forks exit through here, too."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _silence() -> None:
    """Whoever reads what the command prints does not wait for this process."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)


signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, LEAVE))
os.setsid()
_silence()
atexit.register(_remove, os.environ.pop(processes.FOLDER), os.getpid())
processes.is_safe_path = bool(os.environ.pop(processes.SAFE_PATH))
gc.disable()  # as Python's gc.freeze says for a process that forks: forks share what is imported here

from lockstep.launch.worker import import_training  # noqa: E402  # takes seconds

import_training()
gc.freeze()

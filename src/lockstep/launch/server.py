"""Runs inside the fork server of multiprocessing, on import.

It prepares the process and imports torch for all forks. The server survives signals to the group of
its command: it starts a new session and blocks them, also in its forks until they have handlers. It
never initializes CUDA, which would then fail in every fork.
"""

import atexit
import gc
import os
import shutil
import signal

from lockstep.system import processes
from lockstep.system.signals import LEAVE, STOP_SIGNALS


def _remove(folder: str, pid: int) -> None:
    """Remove the folder of sockets of the command, which may have been killed."""
    if os.getpid() == pid:  # This condition is false in a fork.
        shutil.rmtree(folder, ignore_errors=True)


signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, LEAVE))
os.setsid()
null = os.open(os.devnull, os.O_RDWR)
# A process that reads the output of the command does not wait for this process.
for number in range(3):
    os.dup2(null, number)
os.close(null)
atexit.register(_remove, os.environ.pop(processes.FOLDER), os.getpid())
processes.is_safe_path = bool(os.environ.pop(processes.SAFE_PATH))

from lockstep.launch.worker import import_training  # noqa: E402  # takes seconds

try:
    import_training()
# An ImportError is ignored by multiprocessing, and no fork could import torch again.
except BaseException:
    os._exit(1)  # The command, which is alive, removes the folder of sockets.
gc.freeze()  # Forks share the memory of the imports, as its documentation describes.

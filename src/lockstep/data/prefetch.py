"""Configure the worker processes of a loader, which make batches ahead of the training."""

import os
import signal
from multiprocessing.process import BaseProcess, parent_process
from threading import Thread
from typing import Any

from lockstep.system import processes
from lockstep.system.signals import STOP_SIGNALS


def worker_settings(num_workers: int) -> dict[str, Any]:
    """Return keyword arguments of a DataLoader whose workers are forked by the fork server.

    A fork of this process could hang, because it has threads.
    """
    return {
        "num_workers": num_workers,
        "multiprocessing_context": processes.context(),
        "persistent_workers": True,
        "prefetch_factor": 2,
        "worker_init_fn": _start_worker,
    }


def _start_worker(_: int) -> None:
    """Block stop signals, which the training process handles, and exit when that process exits.

    torch only watches the process that forked this one. That is the fork server, and not the
    training process.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for work in (_exit_with_parent, _exit_on_request):
        Thread(target=work, args=(parent_process(),), daemon=True).start()


def _exit_with_parent(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _exit_on_request(parent: BaseProcess) -> None:
    """Exit on SIGTERM from the training process, and ignore SIGTERM from other processes.

    The training process sends the signal when it ends.
    """
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent.pid:
        pass
    os._exit(0)

"""Decoding processes of a rank: they decode images while others are trained on."""

import os
import signal
from multiprocessing.process import parent_process
from threading import Thread
from typing import Any

from lockstep.system import processes
from lockstep.system.signals import STOP_SIGNALS

PREFETCH_FACTOR = 2  # batches each process is ahead


def worker_settings(num_workers: int) -> dict[str, Any]:
    """What a DataLoader is told about its worker processes: they are forks of the server of this process.

    A fork of this process itself, with its threads, could hang.
    """
    return {
        "num_workers": num_workers,
        "multiprocessing_context": processes.context(),
        "persistent_workers": True,
        "prefetch_factor": PREFETCH_FACTOR,
        "worker_init_fn": _start_worker,
    }


def _start_worker(number: int) -> None:
    """Leave signals to the training process, and end with it, whatever ends it.

    torch looks for the process that forked this one, which is not the training process.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for work in (_end_with_parent, _end_for_parent):
        Thread(target=work, name=work.__name__, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _end_for_parent() -> None:
    """SIGTERM of the training process means that it is at its end; of others, that it is to stop in good order."""
    parent = parent_process()
    assert parent is not None
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent.pid:
        pass
    os._exit(0)

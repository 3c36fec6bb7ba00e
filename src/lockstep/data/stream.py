"""Decoding processes of a rank: they decode images while others are trained on."""

import os
import signal
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.process import parent_process
from threading import Thread
from types import ModuleType
from typing import Any, NamedTuple

from typing_extensions import override

from lockstep.system.signals import STOP_SIGNALS, held_back

PREFETCH_FACTOR = 2  # batches each process is ahead
PRELOADED = ["lockstep.data.preloaded"]


class Fault(NamedTuple):
    """What a worker process hands back instead of a batch: a line for each image that cannot be used, or torch's words
    for shared memory that it did not get."""

    images: tuple[str, ...] = ()
    shared_memory: str = ""


class DecodingProcess(ForkServerProcess):
    """A process that does not run the script of this one again, which multiprocessing has every process do.

    A script without `if __name__ == "__main__"` would start its training once more there, and one from standard input
    is in no file: either way the process would be at its end before its first batch.
    """

    @override
    def start(self) -> None:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # multiprocessing reads there what is to be run
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class DecodingContext(ForkServerContext):
    """The fork server of multiprocessing, for decoding processes."""

    Process = DecodingProcess  # pyright: ignore[reportAssignmentType]


def worker_settings(num_workers: int, module: str = "lockstep.data.loader") -> dict[str, Any]:
    """What a DataLoader is told about its worker processes, which decode by what is in `module`.

    They are forked from a process that has imported what decodes: a fork of this one, with its threads, could hang, and
    Python warns of it. Where `lockstep.launch.decoding` has not started it, it is a fresh one.
    """
    context = DecodingContext()
    context.set_forkserver_preload([*PRELOADED, module])
    with held_back():  # of the decoding processes, too, before `_start_worker` holds them back
        forkserver.ensure_running()  # a fresh one imports torch while this process builds its network
    return {
        "num_workers": num_workers,
        "multiprocessing_context": context,
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

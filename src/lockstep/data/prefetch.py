"""Reading ahead: worker processes decode images, a thread moves batches to pinned memory, while the last one trains."""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from multiprocessing.process import parent_process
from threading import Thread
from typing import Any, TypeVar

from lockstep.system import processes
from lockstep.system.signals import STOP_SIGNALS

T = TypeVar("T")


def read_ahead(items: Iterable[T], depth: int, prepare: Callable[[T], T]) -> Iterator[T]:
    """Yield `prepare(item)` of every item, in order, while a thread prepares up to `depth` further items.

    An exception of an item is raised in its place. The thread ends with the iteration, even if it is stopped early.
    """
    source = iter(items)
    thread = ThreadPoolExecutor(1, "read ahead")

    def next_prepared() -> list[T]:
        return [prepare(item) for item in islice(source, 1)]

    try:
        pending = deque(thread.submit(next_prepared) for _ in range(depth))
        while found := pending.popleft().result():
            pending.append(thread.submit(next_prepared))
            yield found[0]
    finally:
        thread.shutdown(cancel_futures=True)


def worker_settings(num_workers: int) -> dict[str, Any]:
    """Keyword arguments of a DataLoader whose workers are forked by the fork server.

    A fork of this process, which has threads, could hang.
    """
    return {
        "num_workers": num_workers,
        "multiprocessing_context": processes.context(),
        "persistent_workers": True,
        "prefetch_factor": 2,
        "worker_init_fn": _start_worker,
    }


def _start_worker(_: int) -> None:
    """Block stop signals, which the training process handles, and exit when that process does.

    torch watches the process that forked this one, which is the fork server and not the training process.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for work in (_exit_with_parent, _exit_on_request):
        Thread(target=work, daemon=True).start()


def _exit_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _exit_on_request() -> None:
    """Exit on SIGTERM of the training process, which sends it at its end; ignore SIGTERM of other processes."""
    parent = parent_process()
    assert parent is not None
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent.pid:
        pass
    os._exit(0)

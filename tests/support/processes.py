"""Runs functions on several ranks.

The processes start once, and each call has its own gloo process group.
"""

import contextlib
import pickle
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from lockstep.distributed import collectives
from lockstep.system import processes
from lockstep.system.hardware import num_cores

TIMEOUT = timedelta(seconds=300)


class Ranks:
    """Up to `num_processes` ranks."""

    def __init__(self, pool: ProcessPoolExecutor, folder: Path) -> None:
        self._pool = pool
        self._folder = folder
        self._num_calls = 0
        self.has_memory = True  # whether the ranks share memory, as those of a run do

    def run(self, world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return `function(*args)` of every rank, in rank order.

        Raises the first exception of any rank.
        """
        self._num_calls += 1
        store = str(self._folder / str(self._num_calls))
        # plain pickle: torch's own sends tensors as open files of a process that ends
        work = pickle.dumps((function, args))
        # a rank that waits for the others keeps its process busy: no process gets two of them
        futures = [
            self._pool.submit(_call, store, rank, world_size, self.has_memory, work)
            for rank in range(world_size)
        ]
        for future in as_completed(futures):
            future.result()
        return [pickle.loads(future.result()) for future in futures]


@contextlib.contextmanager
def started(num_processes: int) -> Iterator[Ranks]:
    """Ranks as forks of the server, which imports torch once."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(num_processes, mp_context=processes.context()) as pool,
    ):
        yield Ranks(pool, Path(folder))


def _call(store: str, rank: int, world_size: int, has_memory: bool, work: bytes) -> bytes:
    torch.set_num_threads(1)
    function, args = pickle.loads(work)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=TIMEOUT
    )
    try:
        if has_memory:
            collectives.connect(TIMEOUT, num_cores())
        result = function(*args)
        dist.barrier()  # no rank exits while another communicates
        return pickle.dumps(result)
    finally:
        collectives.leave()

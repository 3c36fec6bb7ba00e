"""What ranks say to each other: a message by gloo and in shared memory, and a batch norm whose statistics travel."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn

from benchmarks.step import threads
from benchmarks.table import Row, alternate, ratios, row
from lockstep.distributed import batch_norm, collectives
from lockstep.system.hardware import num_cores

LENGTH = 129  # mean and M2 of 64 channels, and a count
NUM_MESSAGES = 400  # of a round; a tenth of them before is not counted
SHAPES = ((32, 16, 8, 8), (32, 64, 28, 28), (128, 128, 14, 14))
TIMEOUT = timedelta(minutes=10)


def _times(talk: Callable[[Tensor], object]) -> list[float]:
    values, times = torch.zeros(LENGTH), []
    dist.barrier()
    for _ in range(NUM_MESSAGES + NUM_MESSAGES // 10):
        started = time.perf_counter()
        talk(values)
        times.append(time.perf_counter() - started)
    return times[NUM_MESSAGES // 10 :]


def _talk(rank: int, num_ranks: int, folder: str, num_rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=num_ranks)
    collectives.connect(TIMEOUT, num_cores())
    assert collectives.shares_memory()
    microseconds: dict[str, list[float]] = {}
    for number in range(num_rounds):
        kinds = {"gloo": dist.all_reduce, "shared memory": collectives.add_up}
        for name in list(kinds) if number % 2 == 0 else reversed(kinds):
            times = sorted(_times(kinds[name]))
            microseconds.setdefault(f"{name}, median", []).append(1e6 * statistics.median(times))
            microseconds.setdefault(f"{name}, 90th percentile", []).append(1e6 * times[int(0.9 * len(times))])
    if rank == 0:
        Path(folder, "microseconds.json").write_text(json.dumps(microseconds))
    dist.barrier()
    collectives.leave()


def messages(num_rounds: int = 7, num_ranks: int = 2) -> list[Row]:
    """Time a sum of 129 float32 over two ranks of one thread: medians and 90th percentiles of every round."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_talk, (num_ranks, folder, num_rounds), nprocs=num_ranks)
        microseconds = json.loads(Path(folder, "microseconds.json").read_text())
    aims = {"shared memory, median": "<= 60 us", "shared memory, 90th percentile": "<= 150 us"}
    rows = [
        row(f"sum of {LENGTH} float32, {name}", times, "{:.0f} us", aim=aims.get(name, ""))
        for name, times in microseconds.items()
    ]
    quotients = ratios(microseconds["shared memory, median"], microseconds["gloo, median"])
    return [*rows, row("shared memory : gloo", quotients, "{:.3f}")]


def _seconds(layer: nn.Module, x: Tensor, dy: Tensor) -> float:
    """CPU seconds of a forward and backward pass, the median of some: one thread does it all."""
    times = []
    for _ in range(5 + 400_000 // x[0].numel() // len(x)):
        started = time.thread_time()
        layer(x).backward(dy)
        times.append(time.thread_time() - started)
        x.grad = None
        layer.zero_grad()
    return statistics.median(times)


# functions, for a call of a Mock takes as long as a quarter of a small layer


def _nothing(values: Tensor) -> None:
    return None


def _true() -> bool:
    return True


def _two() -> int:
    return 2


def norms(num_rounds: int = 7) -> list[Row]:
    """Time the arithmetic of a synchronized batch norm next to torch's own, on one thread, without messages."""
    rows = []
    with (
        threads(1),
        mock.patch.object(batch_norm, "all_gather", lambda values: values.view(1, -1)),
        mock.patch.object(batch_norm, "add_up", _nothing),
        mock.patch.object(batch_norm, "is_distributed", _true),
        mock.patch.object(dist, "get_world_size", _two),
    ):
        for shape in SHAPES:
            x, dy = torch.randn(shape, requires_grad=True), torch.randn(shape)
            plain, synchronized = nn.BatchNorm2d(shape[1]), batch_norm.SyncBatchNorm(shape[1])
            times = alternate(
                num_rounds,
                plain=lambda plain=plain, x=x, dy=dy: _seconds(plain, x, dy),
                synchronized=lambda layer=synchronized, x=x, dy=dy: _seconds(layer, x, dy),
            )
            size = " x ".join(map(str, shape))
            for name, label in (("plain", "nn.BatchNorm2d"), ("synchronized", "SyncBatchNorm")):
                values = [1e6 * value for value in times[name]]
                rows.append(row(f"{label}, {size}, forward and backward", values, "{:.0f} us"))
            rows.append(
                row(f"SyncBatchNorm : BatchNorm2d, {size}", ratios(times["synchronized"], times["plain"]), "{:.2f}")
            )
    return rows

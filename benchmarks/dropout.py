"""Dropout that is exact on any number of workers, next to torch's: the pass of one worker on its shard, one thread."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.step import threads
from benchmarks.table import Row, alternate, ratios, row
from lockstep.distributed.partition import Shard, interval
from lockstep.distributed.rng import ExactDropout
from lockstep.system.wording import plural

BATCH, SAMPLE, P = 1024, (197, 192), 0.1  # a layer of a small vision transformer
CUTS = ((1, 1), (8, 1), (16, 1), (8, 8), (16, 8))  # workers, micro-batches


def dropout(num_rounds: int = 7) -> list[Row]:
    """Time forward and backward of the exact dropout and of F.dropout on the same shard."""
    rows = []
    with threads(1):
        for num_workers, num_micro in CUTS:
            size = BATCH // num_micro
            lo, hi = interval(size, [1] * num_workers, num_workers // 2)  # in the second micro-batch, if there is one
            first = size % BATCH
            shard = Shard(0, 0, 1, size, first + lo, first + hi, BATCH)
            x, dy = torch.randn(hi - lo, *SAMPLE, requires_grad=True), torch.randn(hi - lo, *SAMPLE)
            layer = ExactDropout(p=P, per_channel=False, keys=(0, "dropout", "layer"))

            def exact(x: Tensor, layer: ExactDropout = layer, shard: Shard = shard) -> Tensor:
                layer.shard = shard
                return layer(x)

            times = alternate(
                num_rounds,
                exact=lambda exact=exact, x=x, dy=dy: _seconds(exact, x, dy),
                torch=lambda x=x, dy=dy: _seconds(lambda x: F.dropout(x, P), x, dy),
            )
            split = f"{plural(num_workers, 'worker')}, {plural(num_micro, 'micro-batch', 'micro-batches')}"
            label = f"{hi - lo} of {BATCH} samples ({split})"
            rows.append(row(f"F.dropout, {label}", [1e3 * value for value in times["torch"]], "{:.1f} ms"))
            quotients = ratios(times["exact"], times["torch"])
            rows.append(row(f"exact : F.dropout, {label}", quotients, "{:.2f}", aim="<= 1.5"))
    return rows


def _seconds(drop: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor) -> float:
    """CPU seconds of a forward and a backward pass, the median of some."""
    times = []
    for _ in range(1 + BATCH // len(x) // 4):
        started = time.thread_time()
        drop(x).backward(dy)
        times.append(time.thread_time() - started)
        x.grad = None
    return statistics.median(times)

"""Virtual shards give the same bits on any number of workers.

A batch is split into the same number of virtual shards for any number of workers. A worker computes
a contiguous range of them, each in its own thread, which does what a worker of this shard would do.
So a kernel sees one virtual shard and runs in one thread. A collective has a row for each virtual
shard, and gradients are added in one binary tree. None of this depends on the workers.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from lockstep.distributed import collectives
from lockstep.distributed.batch import Batch, Mix
from lockstep.distributed.partition import interval
from lockstep.distributed.tree import Span, add_over_ranks, add_tree, largest_subtrees

T = TypeVar("T")


class VirtualShards:
    """The virtual shards of this process, with a thread for each.

    A process without any has one thread. `num_threads` of the threads run at once. The shards are
    distributed by the relative `worker_weights` of all ranks. As a context manager it ends the
    threads, which start when they are needed.
    """

    def __init__(self, count: int, worker_weights: Sequence[int], num_threads: int) -> None:
        self.count = count
        self.num_threads = num_threads
        self._cores = threading.Semaphore(num_threads)
        bounds = [interval(self.count, worker_weights, rank) for rank in range(len(worker_weights))]
        self.shards_per_rank = tuple(hi - lo for lo, hi in bounds)
        self._ranges = [range(lo, hi) for lo, hi in bounds]
        self._rank = dist.get_rank() if collectives.is_distributed() else 0
        self.local_shards = self._ranges[self._rank]
        # The batch of this process has at least one part, which may be empty.
        self.num_parts = max(1, len(self.local_shards))
        # Each thread sets its own number of threads, because a new one takes OMP_NUM_THREADS for
        # kernels of oneDNN.
        self._pool = ThreadPoolExecutor(
            self.num_parts, "virtual shard", torch.set_num_threads, (1,)
        )
        self._sent: list[Any] = [None] * self.num_parts
        self._received: Any = None
        self._barrier = threading.Barrier(self.num_parts, action=self._gather_all)
        self._gather: Callable[[list[Any]], Any] = list

    def __deepcopy__(self, memo: dict[int, Any]) -> "VirtualShards":
        return self  # The shards belong to the process, also for a copy of its module.

    def __enter__(self) -> "VirtualShards":
        return self

    def __exit__(self, *error: object) -> None:
        """End the threads, and compute with several threads again."""
        self._pool.shutdown(wait=False)
        torch.set_num_threads(self.num_threads)

    def split(self, batch: Batch) -> list[Batch]:
        """Split the batch of this process into its virtual shards.

        A batch of other shards remains one part. Before images are mixed, a part that is not empty
        also has the mixing partner of its last sample.
        """
        shard = batch.shard
        bounds = [interval(shard.size, [1] * self.count, number) for number in self.local_shards]
        if not bounds or bounds[-1][1] - bounds[0][0] != shard.hi - shard.lo:
            return [batch]
        has_partner = len(batch.indices) > shard.hi - shard.lo
        shard_batches: list[Batch] = []
        for lo, hi in bounds:
            start = lo - bounds[0][0]
            rows = slice(start, start + hi - lo + (has_partner and hi > lo))
            virtual_shard = shard._replace(lo=shard.lo + start, hi=shard.lo + start + hi - lo)
            # The rows are cloned, because rounding may depend on where in memory a tensor begins.
            inputs, targets, indices = (values[rows].clone() for values in batch[:3])
            mix = batch.mix and Mix(*(values[rows].clone() for values in batch.mix))
            shard_batches.append(Batch(inputs, targets, indices, virtual_shard, mix))
        return shard_batches

    def map(self, change: Callable[[Batch], Batch], batch: Batch) -> Batch:
        """Apply `change` to each part of a batch, and join the results."""
        shard_batches = [change(shard_batch) for shard_batch in self.split(batch)]
        mixes = [shard_batch.mix for shard_batch in shard_batches if shard_batch.mix is not None]
        inputs, targets, indices = (
            torch.cat(values)
            for values in zip(*(shard_batch[:3] for shard_batch in shard_batches), strict=True)
        )
        mix = Mix(*(torch.cat(values) for values in zip(*mixes, strict=True))) if mixes else None
        return Batch(inputs, targets, indices, batch.shard, mix)

    def run(self, work: Callable[[int], T]) -> list[T]:
        """Call `work` with the number of each part, in its thread, and return the results in order.

        Inside, the ranks of a collective are all virtual shards. Every rank must call it. It raises
        the error that a part raised first.
        """
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

        def call(part: int) -> T:
            # Backward passes stay in this thread, also on a GPU, because a batch norm waits for the
            # other threads.
            with (
                self._cores,
                torch.inference_mode(modes[1]),
                torch.set_grad_enabled(modes[0]),
                torch.autograd.set_multithreading_enabled(False),
                nullcontext() if device is None else torch.cuda.device(device),
                collectives.acting_as(_VirtualRank(self, part)),
            ):
                try:
                    return work(part)
                except BaseException:
                    self._barrier.abort()
                    raise

        tasks = [self._pool.submit(call, part) for part in range(self.num_parts)]
        try:
            errors = [error for task in tasks if (error := task.exception()) is not None]
        except BaseException:
            self._barrier.abort()
            raise
        # The other parts only report the broken barrier.
        errors.sort(key=lambda error: isinstance(error, threading.BrokenBarrierError))
        for error in errors:
            raise error
        return [task.result() for task in tasks]

    def average(
        self, parameters: Sequence[Tensor], gradients: Sequence[Sequence[Tensor | None]]
    ) -> None:
        """Set the gradient of each parameter to the mean over all virtual shards.

        `gradients` has a list for each part. A parameter that no virtual shard reaches has no
        gradient. Every rank must call it.
        """
        local_gradients = gradients[: len(self.local_shards)]
        counts = torch.zeros(len(parameters), device=parameters[0].device)
        for shard_gradients in local_gradients:
            has_gradient = [gradient is not None for gradient in shard_gradients]
            counts += torch.tensor(has_gradient, device=counts.device)
        is_reached = (collectives.sum_over_ranks(counts) > 0).tolist()
        subtrees = [largest_subtrees((0, self.count), rank_range) for rank_range in self._ranges]
        local_subtrees = subtrees[self._rank]
        # The totals belong to the subtrees of this process.
        totals: list[list[Tensor]] = [[] for _ in parameters]

        def add(part: int) -> None:
            for number in range(part, len(parameters), self.num_parts):
                if is_reached[number]:
                    pairs = zip(self.local_shards, local_gradients, strict=True)
                    leaves = {
                        (n, n + 1): _or_zeros(shard_gradients[number], parameters[number])
                        for n, shard_gradients in pairs
                    }
                    totals[number] = [add_tree(span, leaves) for span in local_subtrees]

        self.run(add)
        if len(subtrees) > 1:
            self._join(parameters, totals, is_reached, subtrees)
        for parameter, total in zip(parameters, totals, strict=True):
            parameter.grad = total[0].mul_(1 / self.count) if total else None

    def _join(
        self,
        parameters: Sequence[Tensor],
        totals: list[list[Tensor]],
        is_reached: Sequence[bool],
        subtrees: Sequence[Sequence[Span]],
    ) -> None:
        """Replace the `totals` of this process's subtrees by the sum over all virtual shards."""
        reached = [number for number, is_used in enumerate(is_reached) if is_used]
        for dtype in dict.fromkeys(parameters[number].dtype for number in reached):
            numbers = [number for number in reached if parameters[number].dtype == dtype]
            sizes = [parameters[number].numel() for number in numbers]
            flat = torch.empty(
                len(subtrees[self._rank]),
                sum(sizes),
                dtype=dtype,
                device=parameters[numbers[0]].device,
            )
            for row, span in enumerate(flat):
                torch.cat([totals[number][row].reshape(-1) for number in numbers], out=span)
            sums = add_over_ranks(subtrees, flat).split(sizes)
            for number, total in zip(numbers, sums, strict=True):
                joined = torch.empty_like(parameters[number])
                totals[number] = [joined.copy_(total.view(joined.shape))]

    def gather_from_threads(self, part: int, value: Any, gather: Callable[[list[Any]], Any]) -> Any:
        """Return what `gather`, a collective of the processes, makes of the values of all parts."""
        self._sent[part], self._gather = value, gather
        self._cores.release()  # Another part computes while this one waits.
        try:
            self._barrier.wait()
            return self._received
        finally:
            self._cores.acquire()

    def _gather_all(self) -> None:
        with collectives.acting_as(None):
            self._received = self._gather(self._sent[: len(self.local_shards)])

    def gather_rows(self, local_rows: list[Tensor]) -> Tensor:
        """Return the rows (count, n) of all virtual shards."""
        row_template = self._sent[0]
        rows = row_template.new_zeros(max(self.shards_per_rank), row_template.numel())
        for row, value in zip(rows, local_rows, strict=False):
            row.copy_(value)
        if len(self.shards_per_rank) == 1:
            return rows
        gathered = collectives.all_gather(rows.view(-1))
        all_rows = gathered.view(len(self.shards_per_rank), -1, row_template.numel())
        pairs = zip(all_rows, self.shards_per_rank, strict=True)
        return torch.cat([rank_rows[:count] for rank_rows, count in pairs])

    def gather_objects(self, local_objects: list[Any]) -> list[Any]:
        return [value for values in collectives.gather_objects(local_objects) for value in values]


class _VirtualRank:
    """One part of this process, as one of the ranks that are all virtual shards."""

    def __init__(self, shards: VirtualShards, part: int) -> None:
        self.world_size = shards.count
        self._shards = shards
        self._part = part

    def all_gather(self, row: Tensor) -> Tensor:
        return self._shards.gather_from_threads(self._part, row, self._shards.gather_rows)

    def gather_objects(self, value: Any) -> list[Any]:
        return self._shards.gather_from_threads(self._part, value, self._shards.gather_objects)


def _or_zeros(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if gradient is None else gradient

"""Make batches from indices by one gather per shard, and store the position in checkpoints."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lockstep.data.sampler import GlobalBatches, ShardIndices, repeats
from lockstep.data.splits import ImageError, Pixels, makes_targets
from lockstep.distributed.batch import Batch

T = TypeVar("T")
S = TypeVar("S")
# A crop is called with pixels, positions (n,) and the epoch, and returns images (n, C, H, W). The
# last argument has the positions on which the draws depend, if these are others.
Crop = Callable[[Pixels, Tensor, int, Tensor | None], Tensor]
# A change is called with images (n, C, H, W), the epoch and the positions (n,) on which the draws
# depend, and returns images of the same shape.
Change = Callable[[Tensor, int, Tensor], Tensor]

NUM_AHEAD = 2  # batches that a thread reads ahead
# CUDA does not copy more pageable memory than this asynchronously ("API synchronization behavior").
STAGED_BYTES = 1 << 16


@dataclass(eq=False)
class ShardDataset(Dataset[Batch | ImageError]):
    """A dataset of pixels and targets, in which one call makes the batch of a complete shard.

    The shard can be empty.
    """

    pixels: Pixels
    targets: Tensor
    crop: Crop | None = None
    change: Change | None = None

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, shard_indices: ShardIndices) -> Batch:
        """Make a batch, whose indices are in host memory. Raises ImageError."""
        indices, shard = shard_indices
        drawn_by = repeats(shard, len(indices))
        pixels, targets = self._read(indices, shard.epoch, drawn_by)
        if self.change is not None:
            pixels = self.change(pixels, shard.epoch, indices if drawn_by is None else drawn_by)
        return Batch(pixels, targets, indices, shard)

    def _read(self, indices: Tensor, epoch: int, drawn_by: Tensor | None) -> tuple[Tensor, Tensor]:
        if makes_targets(self.pixels) and self.crop is None:
            return self.pixels.make(indices, epoch, drawn_by)
        chosen = copy_to_device(indices, self.targets.device)
        targets = self.targets.index_select(0, chosen)
        if self.crop is not None:
            return self.crop(self.pixels, indices, epoch, drawn_by), targets
        # index_select reads 3.4 million 32x32 images/s, brackets 0.4 (one CPU thread, 2026-11-21).
        if isinstance(self.pixels, Tensor):
            return self.pixels.index_select(0, chosen), targets
        return self.pixels[indices], targets

    def __getitems__(self, shard_indices: ShardIndices) -> Batch | ImageError:
        """Make a batch in a worker process, or return the ImageError.

        The error is returned, because torch would raise it with a traceback. Batches are moved to
        shared memory here, where a lack of space raises an error. Otherwise, the thread of
        `multiprocessing.Queue` would drop the batch, and the training would wait forever (Python
        3.11).
        """
        try:
            batch = self.batch(shard_indices)
        except ImageError as error:
            return error
        for value in batch:
            if isinstance(value, Tensor):
                value.share_memory_()
        return batch


def _return_batch(batch: Batch | ImageError) -> Batch | ImageError:
    return batch


def _raise_error(batch: Batch | ImageError) -> Batch:
    if isinstance(batch, ImageError):
        raise batch
    return batch


class ShardLoader(DataLoader[Batch]):
    """A loader whose position, counted in global batches, is the same on every rank.

    The position does not depend on the number of ranks. Lightning saves and restores it by
    `state_dict` and `load_state_dict`. It is the position of the last batch that was yielded, no
    matter how many batches are read ahead. Batches are read ahead by worker processes, which
    `workers` configures, and by a thread that calls `prepare`.
    """

    batch_sampler: GlobalBatches  # pyright: ignore[reportIncompatibleVariableOverride]
    dataset: ShardDataset  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        images: ShardDataset,
        batches: GlobalBatches,
        *,
        prepare: Callable[[Batch], Batch] | None = None,
        **workers: Any,
    ) -> None:
        super().__init__(images, batch_sampler=batches, collate_fn=_return_batch, **workers)  # pyright: ignore[reportArgumentType]
        self._prepare = prepare
        self._position = (0, 0)

    def __iter__(self) -> Iterator[Batch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Without worker processes, DataLoader's iterator is not used, because it costs 30 us per
        # batch (one CPU thread, 2026-11-21).
        batches = (
            map(_raise_error, super().__iter__())
            if self.num_workers
            else map(self.dataset.batch, self.batch_sampler)
        )
        for batch in read_ahead(batches, NUM_AHEAD, self._prepare) if self._prepare else batches:
            # This precedes the yield, because a checkpoint of this step must not repeat its batch.
            self._position = (batch.shard.epoch, batch.shard.micro_step + 1)
            yield batch

    def state_dict(self) -> dict[str, int]:
        epoch, micro_step = self._position
        return {"epoch": epoch, "micro_step": micro_step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the batch of the state, or with the next epoch if it was the last one."""
        epoch, start = state["epoch"], state["micro_step"]
        if start >= len(self.batch_sampler):
            epoch, start = epoch + 1, 0
        self._position = (epoch, start)
        self.batch_sampler.seek(epoch, start)


def read_ahead(items: Iterable[S], depth: int, prepare: Callable[[S], T]) -> Iterator[T]:
    """Yield `prepare(item)` of every item in order, while a thread prepares the next items.

    The thread prepares up to `depth` items ahead. An exception of an item is raised in its place.
    The thread ends with the iteration, even if the iteration is stopped early.
    """
    source = iter(items)
    thread = ThreadPoolExecutor(1, "read ahead")

    def prepare_next() -> list[T]:
        return [prepare(item) for item in islice(source, 1)]

    try:
        futures = deque(thread.submit(prepare_next) for _ in range(depth))
        while result := futures.popleft().result():
            futures.append(thread.submit(prepare_next))
            yield result[0]
    finally:
        thread.shutdown(cancel_futures=True)


def copy_to_device(value: Tensor, device: torch.device) -> Tensor:
    """Copy `value` from host memory to `device` without waiting for a GPU."""
    if device.type == "cuda" and value.nbytes > STAGED_BYTES:
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def pin_batch(batch: Batch, device: torch.device) -> Batch:
    """Copy the batch to page-locked memory, from which it is copied to the GPU asynchronously."""
    with torch.cuda.device(device):  # A new thread starts on the first GPU.
        tensors = {
            field: value.pin_memory()
            for field, value in batch._asdict().items()
            if isinstance(value, Tensor)
        }
        return batch._replace(**tensors)

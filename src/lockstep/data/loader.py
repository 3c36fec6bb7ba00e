"""From indices to batches: one gather per shard, and a position that checkpoints store."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
# of pixels, positions (n,), epoch, and the positions on which draws depend if that is not these:
# images (n, C, H, W)
Crop = Callable[[Pixels, Tensor, int, Tensor | None], Tensor]

NUM_AHEAD = 2  # batches a thread reads ahead
# more pageable memory than this is not copied asynchronously (CUDA's "API synchronization
# behavior")
STAGED_BYTES = 1 << 16


class ShardDataset(Dataset[Batch | ImageError]):
    """Pixels and their targets, of which one call makes the batch of a whole shard, also of an empty one."""

    def __init__(self, pixels: Pixels, targets: Tensor, crop: Crop | None = None) -> None:
        self.pixels = pixels
        self.targets = targets
        self.crop = crop

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, shard_indices: ShardIndices) -> Batch:
        """Make a batch, with its indices in host memory. Raises ImageError."""
        indices, shard = shard_indices
        drawn_by = repeats(shard, len(indices))
        if makes_targets(self.pixels) and self.crop is None:
            pixels, targets = self.pixels.make(indices, shard.epoch, drawn_by)
            return Batch(pixels, targets, indices, shard)
        chosen = copy_to_device(indices, self.targets.device)
        # index_select: 3.4 million 32x32 images/s, brackets: 0.4 (one CPU thread, 2026-11-21)
        if self.crop is not None:
            pixels = self.crop(self.pixels, indices, shard.epoch, drawn_by)
        else:
            pixels = (
                self.pixels.index_select(0, chosen)
                if isinstance(self.pixels, Tensor)
                else self.pixels[indices]
            )
        return Batch(pixels, self.targets.index_select(0, chosen), indices, shard)

    def __getitems__(self, shard_indices: ShardIndices) -> Batch | ImageError:
        """Make a batch in a worker process, or return an ImageError, which torch would raise with a traceback.

        Batches are moved to shared memory here, where a lack of space raises. The thread of
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
    """A loader whose position, counted in global batches, is the same on every rank and for any number of ranks.

    Lightning saves and restores it by `state_dict` and `load_state_dict`. The position is that of
    the last batch that was yielded, however many are read ahead: by processes, which `workers` sets
    up, and a thread that calls `prepare`.
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
        # without worker processes not by DataLoader's iterator, which costs 30 us a batch (one CPU
        # thread, 2026-11-21)
        batches = (
            map(_raise_error, super().__iter__())
            if self.num_workers
            else map(self.dataset.batch, self.batch_sampler)
        )
        for batch in read_ahead(batches, NUM_AHEAD, self._prepare) if self._prepare else batches:
            # before the yield: a checkpoint of this step must not repeat its batch
            self._position = (batch.shard.epoch, batch.shard.micro_step + 1)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        epoch, micro_step = self._position
        return {"epoch": epoch, "micro_step": micro_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the batch of the state; at the end of an epoch, with the next epoch."""
        epoch, start = state["epoch"], state["micro_step"]
        if start >= len(self.batch_sampler):
            epoch, start = epoch + 1, 0
        self._position = (epoch, start)
        self.batch_sampler.seek(epoch, start)


def read_ahead(items: Iterable[S], depth: int, prepare: Callable[[S], T]) -> Iterator[T]:
    """Yield `prepare(item)` of every item, in order, while a thread prepares up to `depth` further items.

    An exception of an item is raised in its place. The thread ends with the iteration, even if it
    is stopped early.
    """
    source = iter(items)
    thread = ThreadPoolExecutor(1, "read ahead")

    def prepare_next() -> list[T]:
        return [prepare(item) for item in islice(source, 1)]

    try:
        pending = deque(thread.submit(prepare_next) for _ in range(depth))
        while found := pending.popleft().result():
            pending.append(thread.submit(prepare_next))
            yield found[0]
    finally:
        thread.shutdown(cancel_futures=True)


def copy_to_device(value: Tensor, device: torch.device) -> Tensor:
    """Copy `value` from host memory to `device` without waiting for a GPU."""
    if device.type == "cuda" and value.nbytes > STAGED_BYTES:
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def pin_batch(batch: Batch, device: torch.device) -> Batch:
    """Copy the batch to page-locked memory, from which it is copied to the GPU asynchronously."""
    with torch.cuda.device(device):  # a new thread starts on the first GPU
        parts = {
            name: value.pin_memory()
            for name, value in batch._asdict().items()
            if isinstance(value, Tensor)
        }
        return batch._replace(**parts)


def fits_on(device: torch.device, num_bytes: int) -> bool:
    """Return whether `num_bytes` of data are at most half of the free memory of a GPU."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return num_bytes <= free // 2

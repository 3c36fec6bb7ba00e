"""From indices to batches: one gather per shard, and a position that checkpoints carry."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lockstep.data.images.decode import ImageError
from lockstep.data.images.pixels import Pixels
from lockstep.data.images.samples import Samples
from lockstep.data.prefetch import read_ahead
from lockstep.data.sampler import GlobalBatches, ShardIndices
from lockstep.data.stream import worker_settings
from lockstep.distributed.batch import Batch

NUM_AHEAD = 2  # batches a thread reads ahead
# no more of pageable memory is copied without waiting for the GPU (CUDA's "API synchronization behavior")
STAGED_BYTES = 1 << 16


class TensorImages(Dataset[Batch]):
    """Images and their targets; a batch is one gather where they are, or decoded, or made of samples of a Dataset."""

    def __init__(self, pixels: Pixels, targets: Tensor) -> None:
        self.pixels = pixels
        self.targets = targets

    def __len__(self) -> int:
        return self.pixels.shape[0]

    def __getitems__(self, wanted: ShardIndices) -> Batch:
        """Take the whole shard in one call, so that an empty one needs no special case."""
        if isinstance(self.pixels, Samples):
            inputs, targets = self.pixels.made(wanted.indices, wanted.shard.epoch)
            return Batch(inputs, targets, wanted.indices, wanted.shard)
        indices = sent(wanted.indices, self.targets.device)
        # not by brackets where it is a tensor: 0.4 against 3.4 million 32x32 images/s (one CPU thread, 2026-11-21)
        pixels = self.pixels.index_select(0, indices) if isinstance(self.pixels, Tensor) else self.pixels[indices]
        return Batch(pixels, self.targets[indices], indices, wanted.shard)


class StreamedImages(Dataset[Batch | ImageError]):
    """Images for worker processes: an ImageError comes back as a value, because torch would raise it with a traceback.

    Batches are in shared memory when they are handed over: a queue that finds no room for one prints that and drops the
    batch, for which the training would wait for ever (`multiprocessing.Queue`, Python 3.11).
    """

    def __init__(self, images: TensorImages) -> None:
        self.images = images

    def __getitems__(self, wanted: ShardIndices) -> Batch | ImageError:
        """Take the samples of a whole shard in one call."""
        try:
            batch = self.images.__getitems__(wanted)
        except ImageError as error:
            return error
        for value in batch:
            if isinstance(value, Tensor):
                value.share_memory_()
        return batch


def _unchanged(batch: Batch) -> Batch:
    return batch


def _whole(batch: Batch | ImageError) -> Batch:
    if isinstance(batch, ImageError):
        raise batch
    return batch


class ShardLoader(DataLoader[Batch]):
    """A loader whose position, counted over the global batches, is the same on every rank and for any number of ranks.

    Lightning saves and restores it through `state_dict` and `load_state_dict`. It is that of the batch handed out last,
    however many are read ahead: by `num_workers` processes, and by a thread that gives each batch to `prepare`.
    """

    batch_sampler: GlobalBatches  # pyright: ignore[reportIncompatibleVariableOverride]
    dataset: TensorImages  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        images: TensorImages,
        batches: GlobalBatches,
        *,
        num_workers: int = 0,
        prepare: Callable[[Batch], Batch] | None = None,
    ) -> None:
        dataset: Any = StreamedImages(images) if num_workers else images
        settings = worker_settings(num_workers) if num_workers else {}
        super().__init__(dataset, batch_sampler=batches, collate_fn=_unchanged, **settings)  # pyright: ignore[reportArgumentType]
        self._prepare = prepare
        self._position = (0, 0)

    def __iter__(self) -> Iterator[Batch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.num_workers:
            read = map(_whole, super().__iter__())
        else:  # not through DataLoader's iterator, which costs 30 us a batch (one CPU thread, 2026-11-21)
            read = map(self.dataset.__getitems__, self.batch_sampler)
        for batch in read_ahead(read, NUM_AHEAD, self._prepare) if self._prepare else read:
            # before the yield: a checkpoint of this step must not see its batch again
            self._position = (batch.shard.epoch, batch.shard.micro_step + 1)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was handed out last."""
        epoch, micro_step = self._position
        return {"epoch": epoch, "micro_step": micro_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the batch of the state; at the end of an epoch, with the next one."""
        epoch, start = state["epoch"], state["micro_step"]
        if start >= len(self.batch_sampler):
            epoch, start = epoch + 1, 0
        self._position = (epoch, start)
        self.batch_sampler.seek(epoch, start)


def sent(value: Tensor, device: torch.device) -> Tensor:
    """`value`, of the host, on `device`; the host does not wait for a GPU."""
    if device.type == "cuda" and value.nbytes > STAGED_BYTES:
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def pinned(batch: Batch, device: torch.device) -> Batch:
    """The batch in page-locked memory, from where it is copied to the GPU beside the work there."""
    with torch.cuda.device(device):  # a thread of its own begins on the first GPU
        parts = {name: value.pin_memory() for name, value in batch._asdict().items() if isinstance(value, Tensor)}
        return batch._replace(**parts)


def fits_on(device: torch.device, num_bytes: int) -> bool:
    """Whether `num_bytes` of data leave at least half of the free memory of a GPU to the training."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return num_bytes <= free // 2

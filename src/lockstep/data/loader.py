"""From indices to batches: one gather per share, and a position that checkpoints carry."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lockstep.data.sampler import GlobalBatches, ShareIndices
from lockstep.parallel.partition import Share


class Mix(NamedTuple):
    """What each image was mixed with: the partner's label int64 (B,), and the weight of the own label float32 (B,)."""

    labels: Tensor
    weights: Tensor


class Batch(NamedTuple):
    """A share of a micro-batch: pixels uint8 (B, C, H, W), labels int64 (B,), indices int64 (B,), B >= 0.

    Before images are mixed, a share that is not empty holds one more: the partner of its last one.
    """

    pixels: Tensor
    labels: Tensor
    indices: Tensor
    share: Share
    mix: Mix | None = None


class TensorImages(Dataset[Batch]):
    """Images in one uint8 tensor (N, C, H, W), in host memory or on the device; a batch is one gather there."""

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels = pixels
        self.labels = labels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitems__(self, wanted: ShareIndices) -> Batch:
        """Takes the whole share at once, so that an empty one needs no special case."""
        indices = wanted.indices.to(self.pixels.device, non_blocking=True)
        return Batch(self.pixels[indices], self.labels[indices], indices, wanted.share)


def _unchanged(batch: Batch) -> Batch:
    return batch


class ShareLoader(DataLoader[Batch]):
    """A loader whose position, counted over the global batches, is the same on every rank and for any number of ranks.

    Lightning saves and restores it through `state_dict` and `load_state_dict`.
    """

    batch_sampler: GlobalBatches  # pyright: ignore[reportIncompatibleVariableOverride]
    dataset: TensorImages  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, images: TensorImages, batches: GlobalBatches) -> None:
        super().__init__(images, batch_sampler=batches, collate_fn=_unchanged)  # pyright: ignore[reportArgumentType]
        self._position = (0, 0)

    def __iter__(self) -> Iterator[Batch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # not through DataLoader's iterator, which costs 30 us a batch (one CPU thread, 2026-11-21)
        for batch in map(self.dataset.__getitems__, self.batch_sampler):
            # before the yield: a checkpoint of this step must not see its batch again
            self._position = (batch.share.epoch, batch.share.micro_step + 1)
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


def fits_on(device: torch.device, num_bytes: int) -> bool:
    """Whether `num_bytes` of data leave at least half of the free memory of a GPU to the training."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return num_bytes <= free // 2

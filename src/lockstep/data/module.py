"""The data of a run for Lightning: the three splits, where their pixels live, and the share of this rank."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import lightning as L
import torch
from torch import Tensor

from lockstep.data.augment import Augment
from lockstep.data.loader import Batch, ShareLoader, TensorImages, fits_on
from lockstep.data.sampler import GlobalBatches
from lockstep.data.sources import Images, Splits
from lockstep.schema import Augment as AugmentSettings


@dataclass(frozen=True, kw_only=True)
class Batching:
    """How batches are cut: sizes are global, over all ranks; None takes every batch of an epoch."""

    global_batch_size: int
    micro_batches_per_step: int
    eval_batch_size: int
    loads: Sequence[int]
    limit_train_batches: int | None
    limit_val_batches: int | None
    limit_test_batches: int | None
    overfit_batches: int


class ImageData(L.LightningDataModule):
    """Serves this rank's shares of the splits, and augments training batches on the device.

    `memory` says where they live: auto keeps them on a GPU while they take at most half of
    its free memory, else in host memory.
    """

    def __init__(
        self,
        splits: Splits,
        *,
        batching: Batching,
        augment: AugmentSettings,
        memory: str,
        seed: int,
        rank: int,
        device: torch.device,
    ) -> None:
        super().__init__()
        self._batching = batching
        self._seed = seed
        self._rank = rank
        self._device = device
        if batching.overfit_batches:
            splits = _first_samples(splits, batching.overfit_batches * batching.global_batch_size)
        self.splits = splits
        self.class_names = splits.class_names
        self.mean, self.std = _channel_statistics(splits.train.pixels)
        self.augment = Augment(**augment.model_dump(), fill=tuple(round(m * 255) for m in self.mean), seed=seed)
        num_bytes = sum(images.pixels.numel() for images in (splits.train, splits.val, splits.test))
        self.is_on_device = device.type == "cuda" and (
            memory == "device" or (memory == "auto" and fits_on(device, num_bytes))
        )
        where = device if self.is_on_device else torch.device("cpu")
        self._images = {
            name: TensorImages(images.pixels.to(where), images.labels.to(where))
            for name, images in (("train", splits.train), ("val", splits.val), ("test", splits.test))
        }

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image."""
        channels, height, width = self.splits.train.pixels.shape[1:]
        return channels, height, width

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch; an incomplete last group of micro-batches is a step."""
        return math.ceil(len(self.train_dataloader()) / self._batching.micro_batches_per_step)

    def _loader(self, split: str, micro_batch_size: int, micro_batches_per_step: int, limit: int | None) -> ShareLoader:
        is_shuffled = split == "train" and not self._batching.overfit_batches
        images = self._images[split]
        batches = GlobalBatches(
            len(images),
            micro_batch_size=micro_batch_size,
            micro_batches_per_step=micro_batches_per_step,
            shuffle_seed=self._seed if is_shuffled else None,
            rank=self._rank,
            loads=self._batching.loads,
            num_batches=limit,
            with_partner=split == "train" and self.augment.needs_partner,
        )
        return ShareLoader(images, batches)

    def train_dataloader(self) -> ShareLoader:
        """Micro-batches in an order drawn anew for every epoch."""
        b = self._batching
        micro_batch_size = b.global_batch_size // b.micro_batches_per_step
        return self._loader("train", micro_batch_size, b.micro_batches_per_step, b.limit_train_batches)

    def val_dataloader(self) -> ShareLoader:
        """Every validation sample once, in order."""
        return self._loader("val", self._batching.eval_batch_size, 1, self._batching.limit_val_batches)

    def test_dataloader(self) -> ShareLoader:
        """Every test sample once, in order."""
        return self._loader("test", self._batching.eval_batch_size, 1, self._batching.limit_test_batches)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move what is not there yet. Lightning's own walk through the tuple costs 50 us (CPU, 2026-11-21)."""
        if batch.pixels.device == device:
            return batch
        pixels, labels, indices = (part.to(device, non_blocking=True) for part in batch[:3])
        return batch._replace(pixels=pixels, labels=labels, indices=indices)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Augment training batches where they are now, on the device."""
        if self.trainer is not None and self.trainer.training:
            return self.augment(batch)
        return batch


def _first_samples(splits: Splits, num_samples: int) -> Splits:
    """Train, validate and test on the same first samples: what a network must be able to learn by heart."""
    train = splits.train
    few = Images(train.pixels[:num_samples], train.labels[:num_samples], train.names[:num_samples])
    return Splits(few, few, few, splits.class_names)


def _channel_statistics(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel of uint8 `pixels` (N, C, H, W), in [0, 1], from exact counts."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in range(pixels.shape[1]):
        counts = torch.bincount(pixels[:, channel].reshape(-1), minlength=256).double()
        weights = counts / counts.sum()
        mean = (weights * values).sum()
        means.append(mean.item())
        stds.append(max(((values - mean).square() * weights).sum().sqrt().item(), 1 / 255))
    return tuple(means), tuple(stds)

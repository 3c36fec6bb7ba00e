"""Provide the LightningDataModule of a run, which serves the shards of this rank."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import lightning as L
import torch
from torch import Tensor
from typing_extensions import override

from lockstep.data.images.image_files import NUM_PER_RUN, sampled_positions
from lockstep.data.loader import (
    Change,
    Crop,
    ShardDataset,
    ShardLoader,
    copy_to_device,
    fits_on,
    pin_batch,
)
from lockstep.data.sampler import GlobalBatches, ShardIndices, positions
from lockstep.data.splits import (
    Pixels,
    Splits,
    all_pixels,
    is_streamed,
    makes_targets,
    num_bytes,
    statistics_of,
)
from lockstep.data.transforms.augment import Augment
from lockstep.distributed.batch import Batch
from lockstep.distributed.partition import Shard
from lockstep.system.text import plural


@dataclass(frozen=True, kw_only=True)
class Batching:
    """Batch sizes, summed over all ranks, and limits on the number of batches in an epoch.

    A limit of None takes every batch of an epoch.
    """

    global_batch_size: int
    accumulate_grad_batches: int
    eval_batch_size: int
    worker_weights: Sequence[int]
    limit_train_batches: int | None
    limit_val_batches: int | None
    limit_test_batches: int | None
    overfit_batches: int
    balance: float
    drop_last: bool


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The device of a rank, where its images are stored, and by how many processes they are made.

    `memory` is "device", "host", "stream" or "auto".
    """

    device: torch.device
    memory: str
    num_workers: int


class ImageData(L.LightningDataModule):
    """Serves the shards of this rank, and augments training batches on the device.

    Images that are not streamed are stored on the GPU with `memory` "device". With "auto" they are
    stored there if they take at most half of the free GPU memory. `num_workers` processes decode
    streamed images, crop training images by `crop`, and change them by `change`. `augment` is
    called with `fill`, the mean color, and `seed`.
    """

    def __init__(
        self,
        splits: Splits,
        *,
        batching: Batching,
        augment: Callable[..., Augment],
        crop: Crop | None,
        change: Change | None,
        storage: Storage,
        seed: int,
        rank: int,
    ) -> None:
        super().__init__()
        self._batching = batching
        self._seed = seed
        self._rank = rank
        self._device = device = storage.device
        self.class_counts = splits.class_counts("train")
        if batching.overfit_batches:
            splits = _first_samples(splits, batching.overfit_batches * batching.global_batch_size)
        self.splits = splits
        self.class_names = splits.class_names
        self.mean, self.std = splits.statistics or statistics_of(splits.train.pixels)
        self.augment = augment(fill=tuple(round(m * 255) for m in self.mean), seed=seed)
        images_by_split = splits.by_name
        self._order = None
        if batching.balance:
            from lockstep.data import balance

            assert splits.train.classes is not None, "refused before"
            sizes = balance.sizes_of(self.class_counts or (), batching.balance)
            self._order = functools.partial(
                balance.order, splits.train.classes, torch.tensor(sizes)
            )
        self._makes_train = crop is not None or change is not None
        self._num_workers = storage.num_workers
        is_wanted = storage.memory == "device" or (
            storage.memory == "auto"
            and fits_on(
                device, sum(num_bytes(images.pixels) for images in images_by_split.values())
            )
        )
        has_made = any(self._is_made(split) for split in images_by_split)
        self.is_on_device = device.type == "cuda" and not has_made and is_wanted
        self._images = {
            split: ShardDataset(images.pixels, images.targets)
            for split, images in images_by_split.items()
        }
        if self.is_on_device:
            self._images = {
                split: ShardDataset(all_pixels(images.pixels, device), images.targets.to(device))
                for split, images in images_by_split.items()
            }
        self._images["train"].crop, self._images["train"].change = crop, change
        # This checks the samples of a Dataset.
        self.look_at_batch: Callable[[Batch], None] | None = None

    def _is_made(self, split: str) -> bool:
        """Return whether worker processes make the images of a split on demand."""
        return is_streamed(self.splits.by_name[split].pixels) or (
            split == "train" and self._makes_train
        )

    @property
    def placement(self) -> str:
        """Return a description of where the training images are stored."""
        pixels = self.splits.train.pixels
        if self.is_on_device:
            return "on the GPU"
        processes = plural(self._num_workers, "process", "processes")
        if is_streamed(pixels):
            return f"streamed by {processes} ({pixels.reason})"
        storage = (
            "in host memory" if isinstance(pixels, Tensor) else f"in host memory, {pixels.reason}"
        )
        return f"{storage}, transformed by {processes}" if self._makes_train else storage

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return the shape (C, H, W) of every image."""
        channels, height, width = self.splits.train.pixels.shape[1:]
        return channels, height, width

    def sampled_targets(self) -> Tensor:
        """Return the targets (N, ...) of all training images.

        For a Dataset, these are the targets of up to 4,096 samples.
        """
        pixels = self.splits.train.pixels
        if not makes_targets(pixels):
            return self.splits.train.targets
        runs = sampled_positions(len(pixels)).split(NUM_PER_RUN)
        return torch.cat([pixels.make(positions, 0)[1] for positions in runs])

    @property
    def steps_per_epoch(self) -> int:
        return self.batches("train").num_steps

    def batches(self, split: str) -> GlobalBatches:
        """Return the shards of this rank for the batches of one epoch of a split."""
        b, is_train = self._batching, split == "train"
        limits = {
            "train": b.limit_train_batches,
            "val": b.limit_val_batches,
            "test": b.limit_test_batches,
        }
        return GlobalBatches(
            len(self._images[split]),
            global_batch_size=b.global_batch_size if is_train else b.eval_batch_size,
            accumulate_grad_batches=b.accumulate_grad_batches if is_train else 1,
            shuffle_seed=self._seed if is_train and not b.overfit_batches else None,
            rank=self._rank,
            worker_weights=b.worker_weights,
            num_batches=limits[split],
            drop_last=is_train and b.drop_last,
            with_partner=is_train and self.augment.needs_partner,
            order=self._order if is_train else None,
        )

    def serve(self, pixels: Mapping[str, Pixels]) -> None:
        """Serve these pixels from now on, in place of the pixels of their splits.

        If the device is a GPU, the pixels must be stored on it.
        """
        self._images |= {
            split: ShardDataset(split_pixels, self._images[split].targets)
            for split, split_pixels in pixels.items()
        }
        self.is_on_device, self._num_workers = self._device.type == "cuda", 0

    def _loader(self, split: str) -> ShardLoader:
        prepare = None
        if self._device.type == "cuda" and not self.is_on_device:
            prepare = functools.partial(pin_batch, device=self._device)
        workers = {}
        if self._is_made(split) and self._num_workers:
            from lockstep.data.prefetch import worker_settings

            workers = worker_settings(self._num_workers)
        return ShardLoader(self._images[split], self.batches(split), prepare=prepare, **workers)

    @override
    def train_dataloader(self) -> ShardLoader:
        return self._loader("train")

    @override
    def val_dataloader(self) -> ShardLoader:
        return self._loader("val")

    @override
    def test_dataloader(self) -> ShardLoader:
        return self._loader("test")

    def example(self, count: int) -> Batch:
        """Return the first `count` training samples on the device.

        If samples are mixed, the partner of the last one is appended.
        """
        shard = Shard(
            epoch=0,
            step=0,
            micro_step=0,
            size=max(count, 1),
            lo=0,
            hi=count,
            group_size=max(count, 1),
        )
        indices = positions(shard, with_partner=self.augment.needs_partner)
        batch = self._images["train"].batch(ShardIndices(indices, shard))
        batch = self.transfer_batch_to_device(batch, self._device, 0)
        return batch._replace(indices=batch.indices.to(self._device))

    @override
    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Call `look_at_batch` while the batch is in host memory.

        Reading the batch on a GPU would wait for the device.
        """
        if self.look_at_batch is not None:
            self.look_at_batch(batch)
        return batch

    @override
    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """Move inputs and targets.

        Lightning's recursion through the tuple would cost 50 us (CPU, 2026-11-21).
        """
        if batch.inputs.device == device:
            return batch
        inputs, targets = (tensor.to(device, non_blocking=True) for tensor in batch[:2])
        return batch._replace(inputs=inputs, targets=targets)

    @override
    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Augment training batches on the device.

        The indices are moved last, because the random draws are made from them on the host.
        """
        if self.trainer is not None and self.trainer.training:
            batch = self.augment(batch)
        return batch._replace(indices=copy_to_device(batch.indices, batch.inputs.device))


def _first_samples(splits: Splits, num_samples: int) -> Splits:
    """Return splits that train, validate and test on the same first samples.

    A network must be able to memorize these samples.
    """
    samples = splits.train.head(num_samples)
    pixels = samples.pixels
    evaluation_samples = (
        replace(samples, pixels=replace(pixels, is_evaluated=True))
        if makes_targets(pixels)
        else samples
    )
    return replace(splits, train=samples, val=evaluation_samples, test=evaluation_samples)

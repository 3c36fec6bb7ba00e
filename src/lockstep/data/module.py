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
    """Batch sizes, summed over all ranks, and the order and number of batches in an epoch.

    `limits` are the largest numbers by split, or None to take every batch of an epoch.
    """

    global_batch_size: int
    accumulate_grad_batches: int
    eval_batch_size: int
    rank: int
    worker_weights: Sequence[int]
    limits: Mapping[str, int | None]
    overfit_batches: int
    seed: int
    balance: float
    drop_last: bool


class ImageData(L.LightningDataModule):
    """Serves the shards of this rank, and augments training batches on the device.

    `memory` is "device", "host", "stream" or "auto". Images that are not streamed are stored on the
    GPU with "device". With "auto" they are stored there if they take at most half of the free GPU
    memory. `num_workers` processes decode streamed images, crop training images by `crop`, and
    change them by `change`. `augment` is called with `fill`, the mean color, and `seed`.
    """

    def __init__(
        self,
        splits: Splits,
        *,
        batching: Batching,
        augment: Callable[..., Augment],
        crop: Crop | None,
        change: Change | None,
        device: torch.device,
        memory: str,
        num_workers: int,
    ) -> None:
        super().__init__()
        self._batching = batching
        self._device = device
        self.class_counts = splits.class_counts("train")
        if batching.overfit_batches:
            splits = _first_samples(splits, batching.overfit_batches * batching.global_batch_size)
        self.splits = splits
        self.class_names = splits.class_names
        self.mean, self.std = splits.statistics or statistics_of(splits.train.pixels)
        fill = tuple(round(m * 255) for m in self.mean)
        self.augment = augment(fill=fill, seed=batching.seed)
        self._order = None
        if batching.balance:
            from lockstep.data import balance

            assert splits.train.classes is not None, "refused before"
            sizes = torch.tensor(balance.sizes_of(self.class_counts or (), batching.balance))
            self._order = functools.partial(balance.order, splits.train.classes, sizes)
        self._makes_train = crop is not None or change is not None
        self._num_workers = num_workers
        self.is_on_device = False
        if device.type == "cuda" and not any(map(self._is_made, splits.by_name)):
            size = sum(num_bytes(images.pixels) for images in splits.by_name.values())
            fits = size <= torch.cuda.mem_get_info(device)[0] // 2
            self.is_on_device = memory == "device" or (memory == "auto" and fits)
        self._images: dict[str, ShardDataset] = {}
        for split, images in splits.by_name.items():
            pixels, targets = images.pixels, images.targets
            if self.is_on_device:
                pixels, targets = all_pixels(pixels, device), targets.to(device)
            self._images[split] = ShardDataset(pixels, targets)
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

    def batches(self, split: str) -> GlobalBatches:
        """Return the shards of this rank for the batches of one epoch of a split."""
        b, is_train = self._batching, split == "train"
        return GlobalBatches(
            len(self._images[split]),
            global_batch_size=b.global_batch_size if is_train else b.eval_batch_size,
            accumulate_grad_batches=b.accumulate_grad_batches if is_train else 1,
            shuffle_seed=b.seed if is_train and not b.overfit_batches else None,
            rank=b.rank,
            worker_weights=b.worker_weights,
            num_batches=b.limits[split],
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
    samples = splits.train.take(slice(num_samples))
    evaluated = samples
    if makes_targets(samples.pixels):
        evaluated = replace(samples, pixels=replace(samples.pixels, is_evaluated=True))
    return replace(splits, train=samples, val=evaluated, test=evaluated)

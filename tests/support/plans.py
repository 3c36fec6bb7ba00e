"""Splits of an epoch over ranks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lockstep.data.loader import ShardDataset, ShardLoader
from lockstep.data.sampler import GlobalBatches


@dataclass(frozen=True)
class Plan:
    """How an epoch is cut; `of` returns the batches of one rank."""

    num_samples: int = 100
    micro_batch_size: int = 8
    accumulate_grad_batches: int = 1
    shuffle_seed: int | None = 3
    num_batches: int | None = None
    drop_last: bool = False
    with_partner: bool = False
    order: Callable[[torch.Generator], torch.Tensor] | None = None

    def of(
        self, rank: int = 0, worker_weights: list[int] | None = None, *, epoch: int = 0
    ) -> GlobalBatches:
        batches = GlobalBatches(
            self.num_samples,
            global_batch_size=self.micro_batch_size * self.accumulate_grad_batches,
            accumulate_grad_batches=self.accumulate_grad_batches,
            shuffle_seed=self.shuffle_seed,
            rank=rank,
            worker_weights=worker_weights or [1],
            num_batches=self.num_batches,
            drop_last=self.drop_last,
            with_partner=self.with_partner,
            order=self.order,
        )
        batches.set_epoch(epoch)
        return batches

    def loader(
        self, rank: int = 0, worker_weights: list[int] | None = None, *, epoch: int = 0
    ) -> ShardLoader:
        """Load 1x2x3 pixels that hold the number of the image, and labels that are twice that."""
        numbers = torch.arange(self.num_samples)
        pixels = numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 3).contiguous()
        return ShardLoader(
            ShardDataset(pixels, 2 * numbers), self.of(rank, worker_weights, epoch=epoch)
        )

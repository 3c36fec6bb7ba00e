"""Order the samples of an epoch, and select the shard that a rank reads."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch.utils.data import Sampler

from lockstep.distributed.partition import Shard, interval
from lockstep.distributed.rng import generator


class ShardIndices(NamedTuple):
    """The samples of one shard, as positions in the data set in the order of the global batch."""

    indices: torch.Tensor
    shard: Shard


def positions(shard: Shard, *, with_partner: bool) -> torch.Tensor:
    """Return the positions of a shard in the global batch.

    With a partner, the cyclically next position is appended, unless the shard is empty.
    """
    return (
        torch.arange(shard.lo, shard.hi + (with_partner and not shard.is_empty)) % shard.group_size
    )


def repeats(shard: Shard, count: int) -> torch.Tensor | None:
    """Return the positions on which the draws of `count` samples depend.

    These are positions in an epoch that repeats samples. In other epochs, None is returned.
    """
    if shard.offset is None:
        return None
    return shard.offset + positions(shard, with_partner=count > shard.hi - shard.lo)


class GlobalBatches(Sampler[ShardIndices]):
    """The shards of this rank for every micro-batch of an epoch.

    Every rank has the same number of shards, and each sample occurs once. The global batch of a
    step is split into `accumulate_grad_batches` micro-batches of one size. A sample that would be
    alone in the last global batch or micro-batch joins the previous one, because batch norm cannot
    normalize a single value. With `drop_last` an incomplete last global batch is left out, and its
    micro-batches with it.

    Without `shuffle_seed`, the order is that of the data set. With it, the order depends only on
    (seed, epoch). `order` draws the order from a generator. It returns as many samples, and can
    repeat some of them. If it is None, each sample is drawn once. `num_batches` limits the
    micro-batches of an epoch. `with_partner` appends to every shard the sample that is mixed with
    its last one. `num_epoch_samples` is the number of samples of one epoch, over all ranks.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        global_batch_size: int,
        accumulate_grad_batches: int,
        shuffle_seed: int | None,
        rank: int,
        worker_weights: Sequence[int],
        num_batches: int | None,
        drop_last: bool = False,
        with_partner: bool = False,
        order: Callable[[torch.Generator], torch.Tensor] | None = None,
    ) -> None:
        self.num_samples = num_samples
        assert global_batch_size % accumulate_grad_batches == 0, "checked with the configuration"
        self.global_batch_size = global_batch_size
        self.accumulate_grad_batches = accumulate_grad_batches
        self.shuffle_seed = shuffle_seed
        self.rank = rank
        self.worker_weights = tuple(worker_weights)
        self.micro_batch_size = global_batch_size // accumulate_grad_batches
        self.num_epoch_samples = num_samples
        if drop_last:
            self.num_epoch_samples -= num_samples % global_batch_size
        self.num_batches = math.ceil(self.num_epoch_samples / self.micro_batch_size)
        if self.num_batches > 1 and 1 in (
            self.num_epoch_samples % self.micro_batch_size,
            self.num_epoch_samples % global_batch_size,
        ):
            self.num_batches -= 1
        if num_batches is not None and num_batches < self.num_batches:
            self.num_batches = num_batches
            self.num_epoch_samples = num_batches * self.micro_batch_size
        self.with_partner = with_partner
        self.order = order
        self.epoch = 0
        self.start = 0
        # Lightning calls set_epoch on `batch_sampler.sampler`, not on a batch sampler itself.
        self.sampler = self

    def set_epoch(self, epoch: int) -> None:
        """Start `epoch`. A position inside the same epoch is kept, as after a resume."""
        if epoch != self.epoch:
            self.seek(epoch, 0)

    def seek(self, epoch: int, start: int) -> None:
        """Start the next iteration at micro-batch `start` of `epoch`."""
        self.epoch, self.start = epoch, start

    @property
    def num_steps(self) -> int:
        """Return the number of optimizer steps of one epoch.

        An incomplete last group of micro-batches is one step.
        """
        return math.ceil(self.num_batches / self.accumulate_grad_batches)

    @property
    def has_single_samples(self) -> bool:
        """Return whether some micro-batch has only one sample.

        This is the case if all micro-batches have one, or if there is only one sample.
        """
        return self.micro_batch_size == 1 or self.num_samples == 1

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[ShardIndices]:
        epoch, start = self.epoch, self.start
        self.start = 0
        if self.shuffle_seed is None:
            order = torch.arange(self.num_samples)
        else:
            source = generator(self.shuffle_seed, epoch, "order")
            order = (
                self.order(source)
                if self.order
                else torch.randperm(self.num_samples, generator=source)
            )
        for micro_step in range(start, self.num_batches):
            shard = self._shard(epoch, micro_step)
            batch = order[shard.step * self.global_batch_size :][: shard.group_size]
            indices = (
                batch[positions(shard, with_partner=True)]
                if self.with_partner
                else batch[shard.lo : shard.hi]
            )
            yield ShardIndices(indices, shard)

    def _shard(self, epoch: int, micro_step: int) -> Shard:
        """Return the shard of a micro-batch.

        The last micro-batch, and with it the last step, ends with the samples of the epoch.
        """
        step, number = divmod(micro_step, self.accumulate_grad_batches)
        num_left = self.num_epoch_samples - step * self.global_batch_size
        is_last_step = step == (self.num_batches - 1) // self.accumulate_grad_batches
        start = number * self.micro_batch_size
        size = num_left - start if micro_step == self.num_batches - 1 else self.micro_batch_size
        lo, hi = (start + end for end in interval(size, self.worker_weights, self.rank))
        group_size = num_left if is_last_step else self.global_batch_size
        offset = None if self.order is None else step * self.global_batch_size
        return Shard(epoch, step, micro_step, size, lo, hi, group_size, offset)

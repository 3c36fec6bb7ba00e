"""Augmentation of a batch in one call, with a draw per sample that does not depend on the number of workers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.nn import functional as F

from lockstep.data.loader import sent
from lockstep.data.sampler import positions
from lockstep.data.transforms import boxes, mixing, trivial
from lockstep.data.transforms.mixing import MixDraws
from lockstep.data.transforms.trivial import TrivialDraws
from lockstep.distributed.batch import Batch
from lockstep.distributed.partition import Shard
from lockstep.distributed.rng import generator, hashed


class Draws(NamedTuple):
    """Random draws for the samples of a batch, one column each; None is switched off."""

    window: Tensor  # int64 (3, B): top, left, whether mirrored
    filled: tuple[Tensor, ...]  # boxes to fill, int64 (4, B) each
    trivial: TrivialDraws | None
    mixed: MixDraws | None


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Change training images in this order; 0 and False switch a part off.

    1. `trivial`: one operation of TrivialAugment on each.
    2. Crop at random from a zero border of `crop_padding` pixels, and mirror: with `flip` true at random; alternating
       in every second epoch, starting at random (Jordan 2024, arXiv 2404.00498).
    3. Fill with `fill`, one value 0..255 per channel: a square of side `cutout`, centred anywhere in the image, so that
       it may cross the edge (DeVries and Taylor 2017); a rectangle, with probability `erasing`.
    4. Mix with the next image of the global batch by `mixup` or `cutmix`, the alphas of their Beta distributions.

    `moved_targets` gets the targets and the function that crops and mirrors (B, C, H, W), to move targets as well.
    """

    crop_padding: int
    flip: bool | Literal["alternating"]
    cutout: int
    erasing: float
    trivial: bool
    mixup: float
    cutmix: float
    fill: tuple[int, ...]
    seed: int
    moved_targets: Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor] | None = None

    @property
    def needs_partner(self) -> bool:
        """True if a shard needs the sample that follows its last one."""
        return self.mixup > 0 or self.cutmix > 0

    def __call__(self, batch: Batch) -> Batch:
        """Augment a shard of a micro-batch on its device."""
        if not (self.trivial or self.crop_padding or self.flip or self.cutout or self.erasing or self.needs_partner):
            return batch
        height, width = batch.inputs.shape[-2:]
        draws = self.draw(batch.shard, height, width)
        return self.apply(batch, apply_to_collection(draws, Tensor, sent, batch.inputs.device))

    def draw(self, shard: Shard, height: int, width: int) -> Draws:
        """Draw on the CPU for the whole global batch, then cut to the shard and the partner of its last sample.

        A sample has the same draws on any rank of any world size, and in any micro-batch. Each part has its own
        generator, so that switching one on or off does not change the others.
        """
        kept = positions(shard, with_partner=self.needs_partner)
        source = self._source(shard, "augment")
        ends = (2 * self.crop_padding + 1, 2 * self.crop_padding + 1, 2, height, width)
        top, left, mirror, y, x = (torch.randint(end, (shard.group_size,), generator=source)[kept] for end in ends)
        filled = [boxes.square(y, x, self.cutout)] if self.cutout else []
        if self.erasing:
            erased = boxes.erasing(self._source(shard, "erasing"), shard.group_size, self.erasing, height, width)
            filled.append(erased[:, kept])
        operations = None
        if self.trivial:
            operations = trivial.draw(self._source(shard, "trivial"), shard.group_size, kept, height, width)
        mixed = None
        if self.needs_partner:
            mixed = mixing.draw(self.seed, shard, height, width, mixup=self.mixup, cutmix=self.cutmix)
        return Draws(torch.stack([top, left, mirror]), tuple(filled), operations, mixed)

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Apply `draws` to a batch on the same device, without a host sync."""
        images = batch.inputs
        if draws.trivial:
            images = trivial.apply(images, draws.trivial)
        if self.crop_padding or self.flip:
            top, left, mirror = draws.window
            if self.flip == "alternating":
                mirror = (hashed(batch.indices, self.seed, "flip") + batch.shard.epoch) % 2
            move = partial(
                self._crop_and_flip, top=top.unsqueeze(1), left=left.unsqueeze(1), mirror=mirror.unsqueeze(1)
            )
            images = move(images)
            if self.moved_targets is not None:
                batch = batch._replace(targets=self.moved_targets(batch.targets, move))
        if draws.filled:
            images = self._fill(images, draws.filled)
        batch = batch._replace(inputs=images)
        return mixing.apply(batch, draws.mixed) if draws.mixed else batch

    def _source(self, shard: Shard, purpose: str) -> torch.Generator:
        return generator(self.seed, shard.epoch, shard.step, purpose)

    def _crop_and_flip(self, images: Tensor, top: Tensor, left: Tensor, mirror: Tensor) -> Tensor:
        batch, channels, height, width = images.shape
        padded = F.pad(images, (self.crop_padding,) * 4)
        rows = torch.arange(height, device=images.device) + top
        columns = torch.arange(width, device=images.device).expand(batch, width)
        if self.flip:
            columns = torch.where(mirror == 1, width - 1 - columns, columns)
        # positions in the flattened padded image, so that crop and mirror are one gather
        position = (rows * padded.shape[3]).unsqueeze(2) + (columns + left).unsqueeze(1)
        position = position.flatten(1).unsqueeze(1).expand(batch, channels, height * width)
        return padded.flatten(2).gather(2, position).reshape(images.shape)

    def _fill(self, images: Tensor, drawn: tuple[Tensor, ...]) -> Tensor:
        channels, height, width = images.shape[1:]
        if len(self.fill) != channels:
            raise ValueError(f"cutout fill={self.fill} for images of {channels} channels: give one value per channel.")
        covered = boxes.inside(drawn[0], height, width)
        for box in drawn[1:]:
            covered = covered | boxes.inside(box, height, width)
        # numbers, because a tensor would have to be copied to the device, which waits
        filled = [channel.masked_fill(covered, fill) for channel, fill in zip(images.unbind(1), self.fill, strict=True)]
        return torch.stack(filled, 1)

"""Augment a batch in one call, with draws per sample that do not depend on the worker count."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lockstep.data.loader import copy_to_device
from lockstep.data.sampler import positions, repeats
from lockstep.data.transforms import boxes, mixing, moves, operations, photometric
from lockstep.data.transforms.mixing import MixDraws
from lockstep.data.transforms.moves import change_in_parts
from lockstep.data.transforms.operations import OperationDraws
from lockstep.distributed.batch import Batch
from lockstep.distributed.partition import Shard
from lockstep.distributed.rng import generator, hash_indices, uniform


class Draws(NamedTuple):
    """Random draws for the samples of a batch, with one column for each sample.

    Draws that are None or empty are switched off.
    """

    operations: tuple[OperationDraws, ...]  # applied one after the other
    jitter: dict[str, Tensor]  # strengths of color changes, int64 (B,) each
    rotation: Tensor | None  # float64 (2, 3, B), source positions
    # int64 (4, B) has top, left, and 0 or 1 for a vertical and for a horizontal flip.
    window: Tensor
    filled: tuple[Tensor, ...]  # boxes to fill, int64 (4, B) each
    mixed: MixDraws | None


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Augment training images by the steps below, in this order. 0 and False disable a step.

    1. With `trivial`, apply one operation of TrivialAugment to each image. With `rand_augment`,
       apply `num_ops` operations of RandAugment, one after the other, at `magnitude` 0 to 30.
    2. Multiply brightness, contrast and saturation by max(0, 1 - strength) to 1 + strength of
       `color_jitter`, in steps of a thousandth. Then shift the hue in either direction by up to
       `hue`, a fraction of the color wheel, in steps of a 6000th. torchvision draws the order of
       the four changes. The order is fixed here, because it matters only where pixel values are
       clamped, and for the hue.
    3. Rotate by up to `rotation` degrees in either direction, to the nearest pixel, with zeros from
       outside.
    4. Crop at random after padding with a border of `crop_padding` pixels, which are zeros or the
       reflected image. Then flip horizontally. If `flip` is true, flips are random. If it is
       alternating, an image is flipped in every second epoch, starting at random (Jordan 2024,
       arXiv 2404.00498). With `vertical_flip`, half of the images are also flipped vertically.
    5. Fill boxes with `fill`, one value of 0 to 255 per channel. One box is a square of side
       `cutout`. It is centered anywhere in the image, so that it may cross the edge (DeVries and
       Taylor 2017), or anywhere where it fits inside. The other is a rectangle with probability
       `erasing`.
    6. Mix with the next image of the global batch by `mixup` or `cutmix`, which are the alphas of
       their Beta distributions.

    `moved_targets` moves the targets as well. It gets the targets and the function of steps 3
    and 4, which takes (B, C, H, W). `by_shard` augments a batch in parts. It gets the function that
    augments a batch, and the batch.
    """

    crop_padding: int
    crop_border: Literal["zeros", "reflect"]
    flip: bool | Literal["alternating"]
    vertical_flip: bool
    rotation: float
    cutout: int
    cutout_inside: bool
    erasing: float
    trivial: bool
    rand_augment: Mapping[str, int]
    color_jitter: Mapping[str, float]
    mixup: float
    cutmix: float
    fill: tuple[int, ...]
    seed: int
    moved_targets: Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor] | None = None
    by_shard: Callable[[Callable[[Batch], Batch], Batch], Batch] | None = None

    @property
    def needs_partner(self) -> bool:
        """Return whether a shard needs the sample that follows its last one."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def _moves(self) -> bool:
        return bool(self.rotation or self.crop_padding or self.flip or self.vertical_flip)

    def __call__(self, batch: Batch) -> Batch:
        """Augment a shard of a micro-batch on its device.

        Its indices should be in host memory, which avoids a sync.
        """
        is_colored = self.trivial or self.rand_augment["num_ops"] or any(self.color_jitter.values())
        if not (is_colored or self._moves or self.cutout or self.erasing or self.needs_partner):
            return batch
        return self._change(batch) if self.by_shard is None else self.by_shard(self._change, batch)

    def _change(self, batch: Batch) -> Batch:
        height, width = batch.inputs.shape[-2:]
        draws = self.draw(batch.shard, batch.indices.cpu(), height, width)
        return self.apply(
            batch, apply_to_collection(draws, Tensor, copy_to_device, batch.inputs.device)
        )

    def draw(self, shard: Shard, indices: Tensor, height: int, width: int) -> Draws:
        """Draw on the CPU for the samples of a shard and the partner of its last one.

        `indices` are their positions in the data set. A sample has the same draws on any rank of
        any world size, and in any micro-batch. Draws depend on the index of the sample, or on its
        position in an epoch that repeats samples. Other draws are made for the complete global
        batch, and the shard is selected from them. Each step has its own generator, so that
        enabling or disabling it does not change the others.
        """
        shard_positions = positions(shard, with_partner=self.needs_partner)
        source = partial(generator, self.seed, shard.epoch, shard.step)
        drawn_by = repeats(shard, len(indices))

        def draw_by_index(purpose: str, count: int = 1) -> Tensor:
            return uniform(
                count, indices if drawn_by is None else drawn_by, self.seed, shard.epoch, purpose
            )

        changes: tuple[OperationDraws, ...] = ()
        if self.trivial:
            changes = (
                operations.draw_trivial(
                    source("trivial"), shard.group_size, shard_positions, height, width
                ),
            )
        elif self.rand_augment["num_ops"]:
            numbers = draw_by_index("rand_augment", 2 * self.rand_augment["num_ops"])
            changes = operations.draw_random(numbers, self.rand_augment["magnitude"], height, width)
        rotation = mixed = None
        if self.rotation:
            angles = math.radians(self.rotation) * (2 * draw_by_index("rotation")[0] - 1)
            rotation = moves.rotations(angles, height, width)
        window_source = source("augment")
        ends = (2 * self.crop_padding + 1, 2 * self.crop_padding + 1, 2, height, width)
        top, left, mirrored, y, x = (
            torch.randint(end, (shard.group_size,), generator=window_source)[shard_positions]
            for end in ends
        )
        if self.flip == "alternating":
            mirrored = (hash_indices(indices, self.seed, "flip") + shard.epoch) % 2
        flips = [torch.zeros_like(top), mirrored * bool(self.flip)]
        if self.vertical_flip:
            flips[0] = (draw_by_index("vertical_flip")[0] < 0.5).long()
        filled_boxes = []
        if self.cutout:
            if self.cutout_inside:
                y, x = boxes.centers_inside(draw_by_index("cutout", 2), self.cutout, height, width)
            filled_boxes.append(boxes.square(y, x, self.cutout))
        if self.erasing:
            erased = boxes.erasing_boxes(
                source("erasing"), shard.group_size, self.erasing, height, width
            )
            filled_boxes.append(erased[:, shard_positions])
        if self.needs_partner:
            mixed = mixing.draw(
                self.seed, shard, (height, width), mixup=self.mixup, cutmix=self.cutmix
            )
        return Draws(
            operations=changes,
            jitter=photometric.draw_jitter(self.color_jitter, draw_by_index),
            rotation=rotation,
            window=torch.stack([top, left, *flips]),
            filled=tuple(filled_boxes),
            mixed=mixed,
        )

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Apply `draws` to a batch on the same device, without a host sync."""
        images = batch.inputs
        for operation_draws in draws.operations:
            images = operations.apply(images, operation_draws)
        images = photometric.jitter(images, draws.jitter)
        images = self._move(images, draws)
        if self.moved_targets is not None and self._moves:
            batch = batch._replace(
                targets=self.moved_targets(batch.targets, partial(self._move, draws=draws))
            )
        if draws.filled:
            images = self._fill(images, draws.filled)
        batch = batch._replace(inputs=images)
        return mixing.apply(batch, draws.mixed) if draws.mixed else batch

    def _move(self, images: Tensor, draws: Draws) -> Tensor:
        if draws.rotation is not None:
            images = change_in_parts(moves.map_pixels, images, draws.rotation)
        if self.crop_padding:
            crop = partial(
                moves.crop_padded,
                padding=self.crop_padding,
                is_reflected=self.crop_border == "reflect",
            )
            return change_in_parts(crop, images, draws.window)
        for dim, is_on, is_flipped in zip(
            (2, 3), (self.vertical_flip, self.flip), draws.window[2:], strict=True
        ):
            if is_on:
                images = change_in_parts(partial(moves.flip_images, dim=dim), images, is_flipped)
        return images

    def _fill(self, images: Tensor, filled_boxes: tuple[Tensor, ...]) -> Tensor:
        height, width = images.shape[2:]
        mask = boxes.box_mask(filled_boxes[0], height, width)
        for box in filled_boxes[1:]:
            mask = mask | boxes.box_mask(box, height, width)
        mask = mask.to(images.dtype)
        images = images * (1 - mask).unsqueeze(1)
        # Python numbers are used, because copying a tensor to the device would wait.
        for channel, fill in zip(images.unbind(1), self.fill, strict=True):
            channel.add_(mask, alpha=fill)
        return images

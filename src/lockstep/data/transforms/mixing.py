"""Mix each sample with the next one of the global batch.

The methods are MixUp (Zhang et al. 2018) and CutMix (Yun et al. 2019).
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lockstep.data.transforms import boxes
from lockstep.distributed.batch import Batch, Mix
from lockstep.distributed.partition import Shard
from lockstep.distributed.rng import seed_of

# Images are mixed in 65536ths. These are integers below 2**24, which float32 represents
# exactly on every device.
ONE = 1 << 16


class MixDraws(NamedTuple):
    """Random draws for the B samples of a shard.

    `image_weights` is ONE where CutMix was drawn, and the box is empty where MixUp was drawn.
    """

    label_weights: Tensor  # float32 (B,), weight of the label of each sample
    image_weights: Tensor | None  # float32 (B,), in 65536ths; None without MixUp
    boxes: Tensor | None  # int64 (4, B), area covered by the partner; None without CutMix


def draw(
    seed: int, shard: Shard, image_size: tuple[int, int], *, mixup: float, cutmix: float
) -> MixDraws:
    """Draw lambda from Beta(alpha, alpha) on the CPU for the global batch, and select the shard.

    `mixup` and `cutmix` are the alphas. If both are above 0, each sample uses one of them with
    probability 1/2.
    """
    source = np.random.default_rng(seed_of(seed, shard.epoch, shard.step, "mix"))
    is_cut = source.random(shard.group_size) < (0.5 if mixup and cutmix else bool(cutmix))
    alpha = np.where(is_cut, cutmix, mixup)
    lambdas = source.beta(alpha, alpha)
    box = []
    for side in image_size:
        half = np.where(is_cut, np.sqrt(1 - lambdas) * side / 2, 0).astype(np.int64)
        center = source.integers(side, size=shard.group_size)
        box += [(center - half).clip(min=0), (center + half).clip(max=side)]
    top, bottom, left, right = box
    area = (bottom - top) * (right - left)  # The edge can truncate the pasted box.
    image_weights = np.where(is_cut, ONE, np.rint(lambdas * ONE))
    weights = np.where(is_cut, 1 - area / math.prod(image_size), image_weights / ONE)
    shard_slice = slice(shard.lo, shard.hi)
    return MixDraws(
        torch.from_numpy(weights[shard_slice]).float(),
        torch.from_numpy(image_weights[shard_slice]).float() if mixup else None,
        torch.from_numpy(np.stack(box)[:, shard_slice]) if cutmix else None,
    )


def apply(batch: Batch, draws: MixDraws) -> Batch:
    """Mix each of B samples with the following one of the B + 1 samples of `batch`.

    The batch may also be empty.
    """
    pixels, partner = batch.inputs[:-1], batch.inputs[1:]
    if draws.image_weights is not None:
        image_weights = draws.image_weights.view(-1, 1, 1, 1)
        mixed = (pixels.float() * image_weights).add_(partner.float().mul_(ONE - image_weights))
        pixels = mixed.add_(ONE / 2).mul_(1 / ONE).to(torch.uint8)  # rounded to nearest
    if draws.boxes is not None:
        pixels = torch.where(
            boxes.box_mask(draws.boxes, *pixels.shape[2:]).unsqueeze(1), partner, pixels
        )
    mix = Mix(batch.targets[1:], draws.label_weights)
    return batch._replace(
        inputs=pixels, targets=batch.targets[:-1], indices=batch.indices[:-1], mix=mix
    )

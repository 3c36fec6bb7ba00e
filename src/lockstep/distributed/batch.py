"""What data gives to a model: the share of a micro-batch that this rank computes."""

from typing import NamedTuple

from torch import Tensor

from lockstep.distributed.partition import Share


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

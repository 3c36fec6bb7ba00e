"""A batch as a model receives it: the shard of a micro-batch that this rank computes."""

from typing import NamedTuple

from torch import Tensor

from lockstep.distributed.partition import Shard


class Mix(NamedTuple):
    """Mixed images: the target of the partner (B, ...), and the weight of the original target, float32 (B,)."""

    targets: Tensor
    weights: Tensor


class Batch(NamedTuple):
    """A shard of a micro-batch: inputs (B, ...), targets (B, ...) and indices int64 (B,) in the data set, B >= 0.

    Inputs are uint8 pixels (B, C, H, W), targets class numbers int64 (B,), unless the data source
    has others. Before images are mixed, a shard that is not empty holds one more: the partner of
    its last one.
    """

    inputs: Tensor
    targets: Tensor
    indices: Tensor
    shard: Shard
    mix: Mix | None = None

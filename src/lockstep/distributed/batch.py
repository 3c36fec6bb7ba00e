"""A batch as a model receives it: the shard of a micro-batch that this rank computes."""

from typing import NamedTuple

from torch import Tensor

from lockstep.distributed.partition import Shard


class Mix(NamedTuple):
    """The targets to mix in, of shape (B, ...), and the weights of the original targets.

    The weights are float32 of shape (B,).
    """

    targets: Tensor
    weights: Tensor


class Batch(NamedTuple):
    """A shard of a micro-batch of B >= 0 samples.

    Inputs and targets have shape (B, ...). Indices are positions in the data set, int64 of shape
    (B,). Inputs are uint8 pixels (B, C, H, W) and targets are class numbers, int64 (B,), unless the
    data source provides others. Before images are mixed, a shard that is not empty holds one more
    sample: the mixing partner of its last one.
    """

    inputs: Tensor
    targets: Tensor
    indices: Tensor
    shard: Shard
    mix: Mix | None = None

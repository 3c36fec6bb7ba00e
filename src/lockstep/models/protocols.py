"""Define the interfaces by which a classifier calls a compiled or graphed network."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from lockstep.distributed.partition import Shard
from lockstep.distributed.rng import ExactDropout


class Layout(NamedTuple):
    """The memory format of a network and its images, and the reason for it."""

    memory_format: torch.memory_format
    reason: str

    @property
    def name(self) -> str:
        return "channels_last" if self.memory_format == torch.channels_last else "contiguous"


class Compiled(Protocol):
    """Calls a compiled network.

    `eager_mode` disables compilation inside its block, and forgets the batch sizes used in it.
    """

    def __call__(self, images: Tensor, /) -> Tensor: ...
    def eager_mode(self) -> AbstractContextManager[None]: ...


Graphed = Callable[[Tensor, Shard], Tensor]
Compiler = Callable[[nn.Module, Sequence[ExactDropout], Layout], Compiled]
Grapher = Callable[..., Graphed]

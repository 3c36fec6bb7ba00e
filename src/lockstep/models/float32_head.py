"""Compute the last layer of a network in float32 inside autocast.

The 8 significant bits of bfloat16 would round a number of 70 to a multiple of 1/2.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from lockstep.models.pretrained_metadata import attach_ends


class Float32(nn.Module):
    """A layer that ignores autocast and computes in float32."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        # An export traces only the layer.
        if not torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


def widen_head(net: nn.Module, num_outputs: int) -> None:
    """Let the layers that return the outputs compute in float32, if they are known.

    They are those of `Origin.head`.
    """
    for name in attach_ends(net, num_outputs).head:
        layer = net.get_submodule(name)
        layer.__class__ = type(type(layer).__name__, (Float32, type(layer)), {})

"""A last layer that computes in float32 inside autocast: 8 bits round a number of 70 to a multiple of 1/2."""

import torch
from torch import Tensor, nn
from typing_extensions import override

from lockstep.models.origin import attach_ends


class Float32(nn.Module):
    """A layer that autocast does not change."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type):  # an export traces only the layer
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


def widen_head(net: nn.Module, num_outputs: int) -> None:
    """Let the layers that return the outputs compute in float32, if they are known; see `Origin.head`."""
    for name in attach_ends(net, num_outputs).head:
        layer = net.get_submodule(name)
        layer.__class__ = type(type(layer).__name__, (Float32, type(layer)), {})

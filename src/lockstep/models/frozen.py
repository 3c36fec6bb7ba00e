"""Freeze networks below their head, and let them take features in place of images."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from typing_extensions import override

from lockstep.system.internals import BatchNorm


class TakesFeatures(nn.Module):
    """A network that is frozen below its last layer, and takes images or features.

    Images are (B, C, H, W). Features (B, D) are the inputs of the layer `head`.
    """

    feature_head: str

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.get_submodule(self.feature_head)(x) if x.dim() == 2 else super().forward(x)


def freeze_below(net: nn.Module, head: tuple[str, ...]) -> None:
    """Freeze all layers but `head` in evaluation mode.

    Statistics stay the same, and no dropout is applied.
    """
    net.eval()
    net.requires_grad_(False)
    for name in head:
        net.get_submodule(name).train().requires_grad_(True)


def freeze_norms(net: nn.Module) -> None:
    """Freeze the batch norms of a network in evaluation mode.

    They normalize by their running statistics.
    """
    for layer in net.modules():
        if isinstance(layer, BatchNorm):
            layer.eval().requires_grad_(False)


def take_features(net: nn.Module, head: tuple[str, ...]) -> None:
    """Let a frozen network take features, too.

    Raises ValueError unless `head` is one linear layer with a bias.
    """
    layer = net.get_submodule(head[0]) if head else net
    if len(head) != 1 or not isinstance(layer, nn.Linear) or layer.bias is None:
        raise ValueError(
            "model.head_only=true needs a linear last layer with a bias: "
            "use model.head_only=each_epoch"
        )
    net.__class__ = type(type(net).__name__, (TakesFeatures, type(net)), {"feature_head": head[0]})


@contextmanager
def head_inputs(net: nn.Module, head: str) -> Iterator[list[Tensor]]:
    """Collect the inputs (B, ...) of the layer `head`.

    There is one for each call of the network by this thread.
    """
    features: list[Tensor] = []
    thread = threading.get_ident()

    def collect(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == thread:
            features.append(inputs[0])

    handle = net.get_submodule(head).register_forward_pre_hook(collect)
    try:
        yield features
    finally:
        handle.remove()

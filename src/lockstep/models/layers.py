"""The layers of a network as a tree: shapes of their outputs, parameters and FLOPs of one image."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


class Layer(NamedTuple):
    """A layer with all that it contains, by its path in the network; the network itself has an empty `name`.

    `output` is the shape (C, ...) of its last output for one image, None if that is no tensor.
    """

    name: str
    kind: str
    output: tuple[int, ...] | None
    parameters: int
    flops: int


def layers_of(net: nn.Module, image_shape: Sequence[int]) -> list[Layer]:
    """Return all layers of a network, each before those that it contains, by computing one image of zeros.

    A multiply-add counts as two FLOPs; torch counts convolutions, matrix products and attention only.
    """
    shapes: dict[nn.Module, tuple[int, ...]] = {}

    def keep(layer: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            shapes[layer] = tuple(output.shape[1:])

    for layer in net.eval().modules():
        layer.register_forward_hook(keep)
    # without gradients torch computes attention in one step that it does not count
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        net(torch.zeros(1, *image_shape))
    flops = {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
    return [
        Layer(
            name,
            type(layer).__name__,
            shapes.get(layer),
            sum(parameter.numel() for parameter in layer.parameters()),
            flops.get(f"{type(net).__name__}.{name}".rstrip("."), 0),
        )
        for name, layer in net.named_modules()
    ]

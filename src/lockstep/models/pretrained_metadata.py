"""Metadata of a pretrained network: weights, normalization, names of its first and last layers."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn


@dataclass(frozen=True)
class Origin:
    """The metadata of a pretrained network, which is read from its attribute `origin`.

    `load` loads the weights that a new run starts with, and may return a line about them for the
    terminal. Rank 0 calls it, once. Any Exception means that they are not available. `mean` and
    `std` have a value for each channel of images in [0, 1], and normalize images in place of the
    statistics of the data. `image_size` is the side in pixels of the images the network was made
    for. `first` and `head` name the layers that take the images and return the outputs. If they are
    empty, these are the first convolution and the last layer with that many outputs.
    """

    image_size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    load: Callable[[], str | None] | None = None
    first: tuple[str, ...] = ()
    head: tuple[str, ...] = ()


def origin_of(net: nn.Module) -> Origin:
    origin = getattr(net, "origin", None)
    return origin if isinstance(origin, Origin) else Origin()


def attach_ends(net: nn.Module, num_outputs: int) -> Origin:
    """Return the metadata of a network with `num_outputs`, with its first and last layers."""
    origin = origin_of(net)
    first_layers = [path for path, layer in net.named_modules() if isinstance(layer, nn.Conv2d)][:1]
    head = [path for path, layer in net.named_modules() if _num_outputs(layer) == num_outputs][-1:]
    return replace(
        origin, first=origin.first or tuple(first_layers), head=origin.head or tuple(head)
    )


def _num_outputs(layer: nn.Module) -> int | None:
    if isinstance(layer, nn.Linear):
        return layer.out_features
    return layer.out_channels if isinstance(layer, nn.Conv2d) else None

"""What a network has from elsewhere: weights, normalization, and the names of its ends."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn


@dataclass(frozen=True)
class Origin:
    """Weights and normalization that a network has from elsewhere; read from its attribute `origin`.

    `load` loads the weights that a new run starts with, and may return a line about them for the
    terminal. Rank 0 calls it, once; any Exception means that they are not available. `mean` and
    `std`, of each channel of images in [0, 1], normalize images in place of the statistics of the
    data. `image_size` is the side in pixels of the images the network was made for. `first` and
    `head` name the layers that take the images and return the outputs: the first convolution and
    the last layer with that many outputs, if they are empty.
    """

    image_size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    load: Callable[[], str | None] | None = None
    first: tuple[str, ...] = ()
    head: tuple[str, ...] = ()


def origin_of(net: nn.Module) -> Origin:
    found = getattr(net, "origin", None)
    return found if isinstance(found, Origin) else Origin()


def attach_ends(net: nn.Module, num_outputs: int) -> Origin:
    """Return the origin of a network with `num_outputs`, with the names of its first layers and of its head."""
    origin = origin_of(net)
    first = [path for path, layer in net.named_modules() if isinstance(layer, nn.Conv2d)][:1]
    head = [path for path, layer in net.named_modules() if _num_outputs(layer) == num_outputs][-1:]
    return replace(origin, first=origin.first or tuple(first), head=origin.head or tuple(head))


def _num_outputs(layer: nn.Module) -> int | None:
    if isinstance(layer, nn.Linear):
        return layer.out_features
    return layer.out_channels if isinstance(layer, nn.Conv2d) else None

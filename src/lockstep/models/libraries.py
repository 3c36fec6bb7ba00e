"""Networks of torchvision and timm, fitted to the images and classes of a run, with or without their weights."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typing_extensions import Doc, override

from lockstep.system import internals
from lockstep.system.kinds import Dropout, DropPath, HeadOnly, Pretrained

State = Mapping[str, Tensor]
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and deviation of its channels
AUXILIARY = ("googlenet", "inception_v3")  # several outputs in training, of which a classification has one


@dataclass(frozen=True)
class Origin:
    """What a network brings along from elsewhere: as its attribute `origin` it is asked for these.

    `load` gives the network the weights it starts a new run with; rank 0 calls it, once, and any Exception means that
    they cannot be had. Images are normalized by `mean` and `std`, of each channel of images in [0, 1], in place of the
    statistics of the data. `image_size` is the side in pixels of the images the network was made for.
    """

    image_size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    load: Callable[[], None] | None = None


def torchvision(
    in_channels: int,
    num_classes: int,
    *,
    name: Annotated[str, Doc("which network")],
    pretrained: Pretrained,
    head_only: HeadOnly,
    dropout: Dropout,
    drop_path: DropPath,
) -> nn.Module:
    """A classification network of torchvision.models by its name.

    `pretrained` is whether it starts with torchvision's weights, or a file of weights. `head_only` freezes all but the
    last layer. `dropout` and `drop_path` (stochastic depth) are the network's own where they are None. Raises the
    TypeError of the library for one that the network does not take.
    """
    from torchvision import models

    if name in AUXILIARY:
        raise ValueError(f"model.name={name} has auxiliary outputs, which are not trained here: choose another network")
    dropout_name = "drop_rate" if name.startswith("densenet") else "dropout"
    rates = _set(**{dropout_name: dropout}, stochastic_depth_prob=drop_path)
    net: nn.Module = models.get_model(name, weights=None, num_classes=num_classes, **rates)
    first, head = _first_convolution(net), [_last_layer(net, num_classes)]
    _fit_input(net, first, in_channels)
    known: Any = models.get_model_weights(name)
    if pretrained is True and not len(known):
        raise ValueError(f"model.pretrained=true: torchvision has no weights of {name}: use model.pretrained=false")

    def state() -> State:
        if isinstance(pretrained, str):
            return _read(pretrained)
        return known.DEFAULT.get_state_dict(progress=False, check_hash=True)

    preset = known.DEFAULT.transforms() if len(known) else None
    size = preset.crop_size[0] if preset is not None else None
    means = (preset.mean, preset.std) if preset is not None else IMAGENET
    return _with_origin(net, size, means, in_channels, state if pretrained else None, [first], head, head_only)


def timm(
    in_channels: int,
    num_classes: int,
    *,
    name: Annotated[str, Doc("which network")],
    pretrained: Pretrained,
    head_only: HeadOnly,
    dropout: Dropout,
    drop_path: DropPath,
) -> nn.Module:
    """A network of timm by its name, as `resnet18` or `resnet18.a1_in1k`; the rest is as in `torchvision`.

    Needs the extra lockstep[timm].
    """
    import timm as library

    rates = _set(drop_rate=dropout, drop_path_rate=drop_path)
    try:
        net: Any = library.create_model(name, in_chans=in_channels, num_classes=num_classes, **rates)
    except RuntimeError as error:
        raise ValueError(f"model.name={name}: {error}") from error
    if not any(isinstance(layer, internals.BatchNorm) for layer in net.modules()):
        net.__class__ = type(type(net).__name__, (_TakesEmpty, type(net)), {})
    settings: Mapping[str, Any] = net.pretrained_cfg

    def state() -> State:
        if isinstance(pretrained, str):
            return _read(pretrained)
        return library.create_model(name, pretrained=True).state_dict()

    first, head = (_names(settings.get(key)) for key in ("first_conv", "classifier"))
    means = (settings["mean"], settings["std"])
    size = settings["input_size"][-1]
    return _with_origin(net, size, means, in_channels, state if pretrained else None, first, head, head_only)


def _set(**rates: float | None) -> dict[str, Any]:
    """The rates that are set."""
    return {name: rate for name, rate in rates.items() if rate is not None}


class _TakesEmpty(nn.Module):
    """A network without batch norm that takes an empty batch: transformers of timm reshape by -1, and fail on one.

    What it computes of one made-up image is cut away, and no layer tells the others of it. The graph stays, so that
    gradients are zeros, and not missing.
    """

    @override
    def forward(self, x: Tensor) -> Tensor:
        if len(x):
            return super().forward(x)
        modes = {layer: layer.training for layer in self.modules()}
        self.eval()  # a dropout would miss the shard of this image
        try:
            return super().forward(x.new_zeros(1, *x.shape[1:]))[:0]
        finally:
            for layer, is_training in modes.items():
                layer.training = is_training


def _with_origin(
    net: nn.Module,
    size: int | None,
    means: tuple[Sequence[float], Sequence[float]],
    in_channels: int,
    state: Callable[[], State] | None,
    first: Sequence[str],
    head: Sequence[str],
    head_only: bool,
) -> nn.Module:
    """The network with what it brings along; all but its head frozen, where that is asked for."""
    if head_only:
        for name, layer in net.named_modules():
            if name not in head:
                for parameter in layer.parameters(recurse=False):
                    parameter.requires_grad_(False)
                if isinstance(layer, internals.BatchNorm):
                    layer.eval()  # it keeps its statistics

    def load() -> None:
        assert state is not None
        net.load_state_dict(_fitted(state(), net, first, head))

    fitted: Any = net
    fitted.origin = Origin(size)
    if state is not None:
        mean, std = (tuple(_spread(values, in_channels)) for values in means)
        fitted.origin = Origin(size, mean, std, load)
    return net


def _fitted(state: State, net: nn.Module, first: Sequence[str], head: Sequence[str]) -> dict[str, Tensor]:
    """Weights from elsewhere for the channels and classes of the network: its own head where the other does not fit.

    Raises ValueError with the first that does not fit.
    """
    own = net.state_dict()
    found: dict[str, Tensor] = {}
    for name, value in own.items():
        layer = name.rpartition(".")[0]
        other = state.get(name)
        if other is not None and layer in first and name.endswith(".weight") and other.ndim == 4:
            other = adapted(other, value.shape[1])
        is_own = layer in head and (other is None or other.shape != value.shape)
        if is_own or (other is None and name.endswith("num_batches_tracked")):
            other = value
        if other is None or other.shape != value.shape:
            shapes = f"{list(other.shape) if other is not None else 'nothing'} there, {list(value.shape)} here"
            raise ValueError(f"it holds another network: {name} is {shapes}")
        found[name] = other
    return found


def adapted(weight: Tensor, in_channels: int) -> Tensor:
    """The weight (O, I, h, w) of a first convolution for other channels.

    For one channel the sum over those there are: what a grey image repeated in all of them gives. For more they are
    repeated, and scaled by I / in_channels.
    """
    num_channels = weight.shape[1]
    if in_channels == num_channels:
        return weight
    if in_channels == 1:
        return weight.sum(1, keepdim=True)
    chosen = [channel % num_channels for channel in range(in_channels)]
    return weight[:, chosen] * (num_channels / in_channels)


def _spread(values: Sequence[float], num_channels: int) -> list[float]:
    if num_channels == 1:
        return [sum(values) / len(values)]
    return [float(values[channel % len(values)]) for channel in range(num_channels)]


def _first_convolution(net: nn.Module) -> str:
    return next(name for name, layer in net.named_modules() if isinstance(layer, nn.Conv2d))


def _last_layer(net: nn.Module, num_classes: int) -> str:
    """The name of the layer that maps to classes."""
    names = [
        name
        for name, layer in net.named_modules()
        if (isinstance(layer, nn.Linear) and layer.out_features == num_classes)
        or (isinstance(layer, nn.Conv2d) and layer.out_channels == num_classes)
    ]
    return names[-1]


def _fit_input(net: nn.Module, name: str, in_channels: int) -> None:
    """Give the first convolution another number of channels."""
    layer = net.get_submodule(name)
    assert isinstance(layer, nn.Conv2d)
    if layer.in_channels != in_channels:
        layer.weight = nn.Parameter(adapted(layer.weight.detach(), in_channels).clone())
        layer.in_channels = in_channels


def _names(value: str | Sequence[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _read(path: str) -> State:
    """The weights in a file of torch's or of safetensors, by themselves or below `state_dict` or `model`."""
    if Path(path).suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    saved = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):
        saved = saved.get(key, saved)
    return {re.sub(r"^module\.", "", name): value for name, value in saved.items()}

"""Make networks of torchvision and timm for the images and classes of a run."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from torch import Tensor, nn
from typing_extensions import Doc, override

from lockstep.models import frozen, weight_files
from lockstep.models.pretrained_metadata import Origin, attach_ends
from lockstep.models.weight_files import State, adapt_channels
from lockstep.system import internals
from lockstep.system.types import Dropout, DropPath, FrozenNorms, HeadOnly, Pretrained

# These are the mean and standard deviation of the channels of ImageNet.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
AUXILIARY = ("googlenet", "inception_v3")  # These have several outputs in training.


def torchvision(
    in_channels: int,
    num_classes: int,
    *,
    name: Annotated[str, Doc("name of the network")],
    pretrained: Pretrained,
    head_only: HeadOnly,
    frozen_norms: FrozenNorms,
    dropout: Dropout,
    drop_path: DropPath,
) -> nn.Module:
    """Make a classification network of torchvision.models by its name.

    With `pretrained`, it starts with torchvision's weights, or with those of a file. `head_only`
    freezes all but the last layer. If it is true, the network also takes the features (B, D) of
    that layer. `dropout` and `drop_path` (stochastic depth) are the network's defaults if None.
    Raises the library's TypeError for one that the network does not take, and ValueError for a
    network with auxiliary outputs or without the requested weights.
    """
    from torchvision import models

    if name in AUXILIARY:
        raise ValueError(
            f"model.name={name} has auxiliary outputs, which are not trained here: "
            "choose another network"
        )
    dropout_name = "drop_rate" if name.startswith("densenet") else "dropout"
    rates = _drop_none({dropout_name: dropout, "stochastic_depth_prob": drop_path})
    net: nn.Module = models.get_model(name, weights=None, num_classes=num_classes, **rates)
    origin = attach_ends(net, num_classes)
    convolution = net.get_submodule(origin.first[0])
    assert isinstance(convolution, nn.Conv2d)
    if convolution.in_channels != in_channels:
        convolution.weight = nn.Parameter(
            adapt_channels(convolution.weight.detach(), in_channels).clone()
        )
        convolution.in_channels = in_channels
    choices: Any = models.get_model_weights(name)
    if pretrained is True and not len(choices):
        raise ValueError(
            f"model.pretrained=true: torchvision has no weights of {name}: "
            "use model.pretrained=false"
        )
    size, (mean, std) = None, IMAGENET
    if len(choices):
        preset = choices.DEFAULT.transforms()
        size, mean, std = preset.crop_size[0], preset.mean, preset.std
    origin = replace(
        origin,
        image_size=size,
        mean=repeat_channels(mean, in_channels),
        std=repeat_channels(std, in_channels),
    )

    def download() -> State:
        # The names in the state_dict are those of the installed version.
        return models.get_model(name, weights="DEFAULT", progress=False).state_dict()

    _freeze(net, origin, head_only=head_only, frozen_norms=frozen_norms)
    return _attach_weights(net, origin, pretrained, download, dict)


def timm(
    in_channels: int,
    num_classes: int,
    *,
    name: Annotated[str, Doc("name of the network")],
    pretrained: Pretrained,
    head_only: HeadOnly,
    frozen_norms: FrozenNorms,
    dropout: Dropout,
    drop_path: DropPath,
) -> nn.Module:
    """Make a network of timm by its name, such as `resnet18` or `resnet18.a1_in1k`.

    The other parameters are those of `torchvision`. The package timm must be installed.
    """
    import timm as library

    rates = _drop_none({"drop_rate": dropout, "drop_path_rate": drop_path})
    try:
        net: Any = library.create_model(
            name, in_chans=in_channels, num_classes=num_classes, **rates
        )
    except RuntimeError as error:
        raise ValueError(f"model.name={name}: {error}") from error
    if not any(isinstance(layer, internals.BatchNorm) for layer in net.modules()):
        net.__class__ = type(type(net).__name__, (_TakesEmpty, type(net)), {})
    settings: Mapping[str, Any] = net.pretrained_cfg
    mean, std = (repeat_channels(settings[key], in_channels) for key in ("mean", "std"))
    first_layers, head = (_name_tuple(settings.get(key)) for key in ("first_conv", "classifier"))
    origin = Origin(settings["input_size"][-1], mean, std, first=first_layers, head=head)

    def download() -> State:
        return library.create_model(name, pretrained=True).state_dict()

    def convert(state: State) -> State:
        module = importlib.import_module(library.models.model_entrypoint(name).__module__)
        return module.checkpoint_filter_fn(dict(state), net)

    _freeze(net, origin, head_only=head_only, frozen_norms=frozen_norms)
    return _attach_weights(net, origin, pretrained, download, convert)


def pretrained_preprocessing(target: str, name: str) -> dict[str, Any]:
    """Return `crop_percent` and `interpolation` of the images that a library trained on.

    The result is empty for a network without weights. Raises the library's RuntimeError or
    ValueError for an unknown name.
    """
    if target.endswith(".timm"):
        import timm as library

        settings: Any = library.get_pretrained_cfg(name, allow_unregistered=False)
        # If it is above 1 (volo_d4_448), timm pads the image with black.
        return {
            "crop_percent": min(1.0, settings.crop_pct),
            "interpolation": settings.interpolation,
        }
    from torchvision import models

    weights: Any = models.get_model_weights(name)
    if not len(weights):
        return {}
    preset = weights.DEFAULT.transforms()
    return {
        "crop_percent": preset.crop_size[0] / preset.resize_size[0],
        "interpolation": preset.interpolation.value,
    }


class _TakesEmpty(nn.Module):
    """Accepts an empty batch in a network without batch norm.

    Transformers of timm reshape by -1, and fail on an empty batch. Instead, one zero image is
    computed, and its output is removed. The autograd graph stays, so that gradients are zeros and
    not missing.
    """

    @override
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0]:  # In an exported network, len(x) would be a constant.
            return super().forward(x)
        modes = {layer: layer.training for layer in self.modules()}
        self.eval()  # A dropout has no shard for this image.
        try:
            return super().forward(x.new_zeros(1, *x.shape[1:]))[:0]
        finally:
            for layer, is_training in modes.items():
                layer.training = is_training


def _drop_none(rates: Mapping[str, float | None]) -> dict[str, Any]:
    return {name: rate for name, rate in rates.items() if rate is not None}


def _name_tuple(value: str | Sequence[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def repeat_channels(values: Sequence[float], num_channels: int) -> tuple[float, ...]:
    """Return a mean or standard deviation for other channels.

    For one channel, it is the mean of all values. Otherwise, the values are repeated.
    """
    if num_channels == 1:
        return (sum(values) / len(values),)
    return tuple(float(values[channel % len(values)]) for channel in range(num_channels))


def _freeze(net: nn.Module, origin: Origin, *, head_only: bool | str, frozen_norms: bool) -> None:
    if frozen_norms:
        frozen.freeze_norms(net)
    if head_only:
        frozen.freeze_below(net, origin.head)
    if head_only is True:
        frozen.take_features(net, origin.head)


def _attach_weights(
    net: nn.Module,
    origin: Origin,
    pretrained: bool | str,
    download: Callable[[], State],
    convert: Callable[[State], State],
) -> nn.Module:
    """Attach its pretrained metadata to a network.

    With pretrained weights, a new linear head starts at zero. Its library may have drawn it for
    another number of classes. The head of an EfficientNet begins a training on 5 classes at a loss
    of 5, which ruins the other weights.
    """
    for name in origin.head if pretrained else ():
        layer = net.get_submodule(name)
        if isinstance(layer, nn.Linear):
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)

    def load() -> str | None:
        if isinstance(pretrained, str):
            return weight_files.load_weights(pretrained, net, origin, convert)
        net.load_state_dict(weight_files.fit_weights(download(), net, origin), strict=False)
        return None

    changes: Any = {"load": load} if pretrained else {"mean": None, "std": None}
    attributed: Any = net
    attributed.origin = replace(origin, **changes)
    return net

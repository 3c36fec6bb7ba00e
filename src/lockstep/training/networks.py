"""Networks before their training: what they bring along, and what they must not do."""

import contextlib
import copy
import sys
from collections.abc import Callable

import torch
from torch import nn

from lockstep.config import build
from lockstep.config.errors import ConfigError, one_line, shown
from lockstep.config.schema import Config
from lockstep.distributed.partition import Shard
from lockstep.distributed.rng import drawing_layer, replace_dropout
from lockstep.models.classifier import ImageFormat
from lockstep.models.libraries import Origin
from lockstep.training.session import Session
from lockstep.training.staging import together

FAR_BELOW = 4  # times smaller than what a network was made for: few or no pixels are left of its last maps


def origin(net: nn.Module) -> Origin:
    """What a network brings along; of most networks nothing."""
    found = getattr(net, "origin", None)
    return found if isinstance(found, Origin) else Origin()


def normalized(net: nn.Module, image_format: ImageFormat) -> ImageFormat:
    """The format of the images, normalized as the weights of the network want them where it says so."""
    brought = origin(net)
    if brought.mean is None or brought.std is None:
        return image_format
    return image_format._replace(mean=brought.mean, std=brought.std)


def load_weights(session: Session, net: nn.Module) -> None:
    """Give the network of a new run the weights it brings along, on rank 0; the others get them when DDP begins.

    Every rank must call it. Raises ConfigError on all ranks where the weights cannot be had.
    """
    load = origin(net).load
    if load is not None:
        together(lambda: _loaded(session.config, load) if session.rank == 0 else None)


def _loaded(config: Config, load: Callable[[], None]) -> None:
    """Raise ValueError for any Exception of a custom `load`."""
    try:
        with torch.random.fork_rng(devices=[]):
            load()
    except Exception as error:
        pretrained = config.model.arguments().get("pretrained")
        where = f"_target_={config.model.target}" if pretrained is None else f"pretrained={shown(pretrained)}"
        text = f"{type(error).__name__}: {one_line(error)}"
        hint = "give a file of weights for this network, model.pretrained=weights.pth, or model.pretrained=false"
        raise ValueError(f"model.{where}: the weights cannot be had ({text}): {hint}") from error


def refuse_draws(config: Config, net: nn.Module, image_shape: tuple[int, int, int]) -> None:
    """Raise ConfigError where a training pass draws random numbers in a way that would depend on the rank.

    Tried on a copy of the network, by two images. A network that cannot be copied, or does not run on a CPU, is left to
    the first step.
    """
    if config.model.target == "lockstep.models.ResNet18":
        return
    with build.answering(config, "model"), contextlib.suppress(RuntimeError, AssertionError, NotImplementedError):
        trial = copy.deepcopy(net)
        for dropout in replace_dropout(trial, config.seed):
            dropout.shard = Shard(0, 0, 0, 2, 0, 2, 2)
        layer = drawing_layer(trial, torch.zeros(2, *image_shape))
        if layer is not None:
            error = f"model._target_={config.model.target}: the layer {layer} draws random numbers by a function"
            hint = "switch that off, or use a layer: nn.Dropout, nn.Dropout2d"
            raise ConfigError([f"{error}, so that they depend on the worker: {hint}"])


def tell_of_size(session: Session, net: nn.Module, image_shape: tuple[int, int, int]) -> None:
    """Say on rank 0 where images are far smaller than those the network was made for."""
    made_for, side = origin(net).image_size, min(image_shape[1:])
    if made_for is not None and side * FAR_BELOW < made_for and session.rank == 0 and not session.config.silent:
        print(
            f"The network was made for images of {made_for} pixels, these have {side}: larger ones (data.image_size of "
            "an image_folder), or a network for small ones (model=resnet18), will be better.",
            file=sys.stderr,
            flush=True,
        )

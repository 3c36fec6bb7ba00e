"""Load the weights of a file or a library into a network, and report what was taken."""

import re
import zipfile
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.models.pretrained_metadata import Origin
from lockstep.system.text import expand_path, join_names

State = Mapping[str, Tensor]
# These are the keys in checkpoints of timm's and torchvision's scripts. The average comes first,
# because these scripts choose the best epoch by it.
KEYS = ("state_dict_ema", "model_ema", "state_dict", "model")
COUNTER = "num_batches_tracked"
MAX_KEYS_NAMED = 8


def load_weights(
    path: str, net: nn.Module, origin: Origin, convert: Callable[[State], State]
) -> str:
    """Load the weights of a file into a network, and return what was taken in one line.

    Names that do not fit are converted by `convert`. Raises ValueError if the file has no weights,
    or those of another network.
    """
    tensors, notes = _read(expand_path(path))
    network_state = net.state_dict()
    prefix = _common_prefix(network_state, tensors)
    state = without_prefix(prefix, tensors)
    note = f"names without {prefix}" if prefix else ""
    try:
        weights = fit_weights(state, net, origin)
    except ValueError as error:
        try:
            state = convert(tensors)
            weights = fit_weights(state, net, origin)
        except Exception:  # Libraries raise any exception for names they do not know.
            raise error from None
        note = "names converted by timm"
    net.load_state_dict(weights, strict=False)
    return "; ".join(filter(None, [*describe(network_state, weights, state), *notes, note]))


def describe(network_state: State, weights: State, state: State) -> list[str]:
    """Return how many tensors of `network_state` are in `weights`, and which are new or adapted.

    A tensor is adapted if its shape differs from that in `state`.
    """
    new_names = [
        name.removeprefix("net.")
        for name in network_state
        if name not in weights and not name.endswith(COUNTER)
    ]
    adapted_names = [
        name.removeprefix("net.")
        for name, value in weights.items()
        if value.shape != state[name].shape
    ]
    descriptions = [f"{len(weights)} of {len(weights) + len(new_names)} tensors loaded"]
    if new_names:
        descriptions.append(f"new: {join_names(new_names, MAX_KEYS_NAMED)}")
    if adapted_names:
        descriptions.append(f"adapted to the channels: {', '.join(adapted_names)}")
    return descriptions


def fit_weights(state: State, net: nn.Module, origin: Origin) -> dict[str, Tensor]:
    """Return the weights of `state` for a network, adapted to its channels.

    A head that does not fit is left out. Raises ValueError with the first of the other weights that
    do not fit.
    """
    network_state, weights, problems = net.state_dict(), {}, []
    for name, value in network_state.items():
        (layer, _, kind), tensor = name.rpartition("."), state.get(name)
        if tensor is not None and tensor.ndim == 4 and layer in origin.first and kind == "weight":
            tensor = adapt_channels(tensor, value.shape[1])
        if tensor is not None and tensor.shape == value.shape:
            weights[name] = tensor
        elif layer not in origin.head and (tensor is not None or kind != COUNTER):
            shape = list(tensor.shape) if tensor is not None else "missing"
            problems.append(f"{name} is {shape}, expected {list(value.shape)}")
    problems += [
        f"{name} is not expected"
        for name in state
        if name not in network_state and name.rpartition(".")[0] not in origin.head
    ]
    if problems:
        remainder = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        raise ValueError(f"the weights are of another network: {problems[0]}{remainder}")
    return weights


def adapt_channels(weight: Tensor, in_channels: int) -> Tensor:
    """Adapt the weight (O, I, h, w) of a first convolution to another number of channels.

    For one channel, it is the sum over all channels, as for a grayscale image that is repeated in
    them. For more channels, they are repeated, and scaled by I / in_channels.
    """
    num_channels = weight.shape[1]
    if in_channels == num_channels:
        return weight
    if in_channels == 1:
        return weight.sum(1, keepdim=True)
    channels = [channel % num_channels for channel in range(in_channels)]
    return weight[:, channels] * (num_channels / in_channels)


def _common_prefix(network_state: State, state: State) -> str:
    """Return what most names of a file have before a name of the network, such as `module.`."""
    prefixes = Counter[str]()
    for name in state:
        ends = [0, *(dot.end() for dot in re.finditer(r"\.", name))]
        prefixes.update(name[:end] for end in ends if name[end:] in network_state)
    return max(prefixes, key=prefixes.__getitem__, default="")


def without_prefix(prefix: str, state: State) -> dict[str, Tensor]:
    """Return the tensors whose names have the prefix, and remove it from their names."""
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }


def _read(path: str) -> tuple[State, list[str]]:
    """Read a file of torch or safetensors.

    Returns its tensors, and which part of the file has them. Raises ValueError for objects other
    than tensors, plain values and the settings of a script, because they could run code.
    """
    content, notes = _load(path), list[str]()
    if "image_format" in content:
        raise ValueError(
            "it is the checkpoint of a run: use init_from in place of model.pretrained"
        )
    while key := next((key for key in KEYS if isinstance(content.get(key), dict)), None):
        content, notes = content[key], [f"from {key}"]
    state = {
        name: value
        for name, value in content.items()
        if isinstance(name, str) and isinstance(value, Tensor)
    }
    if not state:
        raise ValueError("it has no tensors with names: save the state_dict of the network")
    return state, notes


def _load(path: str) -> dict[Any, Any]:
    load: Callable[[str], Any] = partial(torch.load, map_location="cpu", weights_only=True)
    if Path(path).suffix == ".safetensors":
        from safetensors.torch import load_file as load
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:  # torch ignores wrong checksums.
                    raise zipfile.BadZipFile
        with torch.serialization.safe_globals([Namespace]):
            content = load(path)
    except Exception as error:  # Decoders can raise any exception.
        if match := re.search(r"GLOBAL (\S+) was not an allowed", str(error)):
            raise ValueError(
                f"it contains a {match[1]}, which could run code: save only its tensors"
            ) from error
        raise ValueError(
            f"it is damaged, or not a file of torch or safetensors: {type(error).__name__}"
        ) from error
    return content if isinstance(content, dict) else {}

"""Starts a new run with the weights of a checkpoint: `init_from`."""

from pickle import UnpicklingError

import torch
from lightning import LightningModule
from torch import Tensor

from lockstep.assembly.checkpoints import damage
from lockstep.assembly.session import Session
from lockstep.config.errors import config_error
from lockstep.models.classifier import Checkpoint, Classifier, ImageFormat
from lockstep.models.libraries import repeat_channels
from lockstep.models.pretrained_metadata import attach_ends
from lockstep.models.weight_files import State, describe, fit_weights, without_prefix
from lockstep.runs.naming import display_path
from lockstep.system.terminal import print_line, terminal

NOT_A_RUN = (
    "is not a checkpoint of a run",
    "for weights use model.pretrained=FILE, model=torchvision or timm",
)


def load(session: Session, module: LightningModule, images: ImageFormat) -> None:
    """Load the network of a checkpoint and its normalization into the module of a new run.

    The head, and what the task has learned, are loaded only for the same classes in the same order.
    A first convolution is adapted to other channels. Rank 0 prints what is new or adapted. Raises
    ConfigError for another network.
    """
    setting = f"init_from={session.config.init_from}"
    checkpoint = _read(session, setting)
    state = checkpoint["state_dict"]
    classes = tuple(checkpoint.get("image_format", {}).get("class_names", ()))
    is_same = classes == images.class_names
    net, prefix = (module.net, "net.") if isinstance(module, Classifier) else (module, "")
    origin = attach_ends(net, len(images.class_names))
    tensors = without_prefix(prefix, state)
    if not tensors:
        raise config_error("damaged", setting, *NOT_A_RUN)
    if not is_same:
        tensors = {
            name: value
            for name, value in tensors.items()
            if name.rpartition(".")[0] not in origin.head
        }
    try:
        net_weights = fit_weights(tensors, net, origin)
    except ValueError as error:
        raise config_error(
            "conflict",
            setting,
            f": {error}",
            "choose model=... of that run, or remove init_from",
        ) from error
    weights = {f"{prefix}{name}": value for name, value in net_weights.items()}
    module_state = module.state_dict()
    if isinstance(module, Classifier):
        names = [name for name in module_state if name.startswith("task.") and name in state]
        if is_same:
            weights |= {
                name: state[name] for name in names if state[name].shape == module_state[name].shape
            }
        if "mean" in state:  # The checkpoint of a custom module does not have it.
            weights |= _normalize(module, state)
    module.load_state_dict(weights, strict=False)
    if session.is_shown:
        descriptions = describe(module_state, weights, state)
        if not (is_same or origin.head):
            num_classes = len(images.class_names)
            descriptions.append(
                f"all weights are loaded, because no layer has {num_classes} outputs"
            )
        if len(descriptions) > 1:
            print_line(terminal(), f"{setting}: {'; '.join(descriptions)}")


def _read(session: Session, setting: str) -> Checkpoint:
    if (error := damage(session.folder.initial_weights)) is not None:
        raise config_error(
            "damaged", display_path(session.folder.initial_weights), error, "start a new run"
        )
    try:
        checkpoint = torch.load(
            session.folder.initial_weights, map_location="cpu", weights_only=True, mmap=True
        )
        if "state_dict" in checkpoint:
            return checkpoint
    except (TypeError, UnpicklingError):
        pass
    raise config_error("damaged", setting, *NOT_A_RUN)


def _normalize(module: Classifier, state: State) -> dict[str, Tensor]:
    """Normalize images as the checkpoint does.

    Returns the buffers for the channels of the module.
    """
    shape, buffers = module.mean.shape, dict[str, Tensor]()
    for name in ("mean", "std"):
        channels = repeat_channels(state[name].flatten().tolist(), shape[1])
        buffers[name] = torch.tensor(channels).view(shape)
        fractions = tuple(value / 255 for value in channels)
        module.image_format = module.image_format._replace(**{name: fractions})
    return buffers

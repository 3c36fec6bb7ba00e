"""Data and network of a training, tried out on each other, with the weights that it begins with."""

import dataclasses

import lightning as L
from lightning.pytorch.callbacks import Callback

from lockstep.data.module import ImageData
from lockstep.training import assembly, networks, own_module, trial
from lockstep.training.session import Session


def prepared(here: Session, *, is_new: bool) -> tuple[ImageData, L.LightningModule, list[Callback]]:
    """What is trained, with the callbacks that come first, for a module of the user's own.

    A new run gets the weights of `init_from`, or those that its network brings along. Every rank must call it. Raises
    ConfigError where the parts do not fit together.
    """
    config = here.config
    data = assembly.image_data(here, here.folder, is_new=is_new)
    total_steps = config.trainer.max_epochs * data.steps_per_epoch
    if config.has_own_module:
        module, companion = own_module.made(here, assembly.image_format(data), total_steps=total_steps)
        return data, module, [companion]
    module = assembly.classifier(here, assembly.image_format(data), total_steps=total_steps, is_trained=True)
    data.augment = dataclasses.replace(data.augment, moved_targets=module.task.moved_targets)
    trial.try_out(here, data, module)
    if is_new and config.init_from is not None:
        assembly.load_weights(module, here.folder.initial_weights, config.init_from)
    elif is_new:
        networks.load_weights(here, module.net)
    return data, module, []

"""Data and network of a training, tried out on each other, with the weights that it begins with."""

from lockstep.data.module import ImageData
from lockstep.models.classifier import Classifier
from lockstep.training import assembly, networks, trial
from lockstep.training.session import Session


def prepared(here: Session, *, is_new: bool) -> tuple[ImageData, Classifier]:
    """What is trained; a new run gets the weights of `init_from`, or those that its network brings along.

    Every rank must call it. Raises ConfigError where the parts do not fit together.
    """
    config = here.config
    data = assembly.image_data(here)
    total_steps = config.trainer.max_epochs * data.steps_per_epoch
    module = assembly.classifier(here, assembly.image_format(data), total_steps=total_steps, is_trained=True)
    assembly.refuse_single_values(config, data, module)
    trial.joined(data, module.task)
    trial.try_out(here, data, module)
    if is_new and config.init_from is not None:
        assembly.load_weights(module, here.folder.initial_weights, config.init_from)
    elif is_new:
        networks.load_weights(here, module.net)
    return data, module

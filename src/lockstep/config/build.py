"""The objects that the sections of a configuration describe."""

from typing import Any

from lockstep.config.schema import Config
from lockstep.config.storage import to_tree
from lockstep.config.target_sections import Open, Target
from lockstep.config.workers import resolve_workers


def scaled(config: Config) -> Config:
    """The configuration with batch size and learning rate multiplied by the workers, if it asks for that."""
    if not config.scale_with_workers:
        return config
    num_workers = resolve_workers(config).world_size
    tree = to_tree(config)
    tree["global_batch_size"] *= num_workers
    tree["optimizer"]["lr"] *= num_workers
    tree["scale_with_workers"] = False
    return Config.model_validate(tree)


def imported(target: str) -> Any:
    """What a dotted name stands for."""
    from hydra.utils import get_object

    return get_object(target)


def build(section: Target | Open, **supplied: Any) -> Any:
    """Call the target of a section, or bind it where it is partial. What the target raises comes out as it is."""
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    is_partial = getattr(section, "partial", False)
    try:
        return instantiate({"_target_": section.target, "_partial_": is_partial, **section.arguments()}, **supplied)
    except InstantiationException as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None

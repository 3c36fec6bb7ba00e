"""The objects that the sections of a configuration describe."""

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

from lockstep.config import measured
from lockstep.config.errors import ConfigError, one_line
from lockstep.config.schema import Config
from lockstep.config.storage import to_tree
from lockstep.config.target_sections import Open, Target
from lockstep.config.workers import resolve_workers

SPECIAL = ("_target_", "_partial_", "_args_", "_recursive_", "_convert_")  # keys of Hydra


def monitored(config: Config) -> tuple[str, Literal["min", "max"]]:
    """The metric by which best.ckpt is chosen, and which of its values is the best."""
    for section in config.callbacks.values():
        if section is not None and section.target.endswith(".ModelCheckpoint"):
            arguments = section.arguments()
            if arguments.get("monitor"):
                return str(arguments["monitor"]), arguments.get("mode", "min")
    name, is_max = measured.default(config)
    return name, "max" if is_max else "min"


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


@contextlib.contextmanager
def answering(config: Config, section: str) -> Iterator[None]:
    """Raise ConfigError, which names the `_target_` of a section, in place of a TypeError or ValueError of its target.

    An error that names its setting itself stays as it is.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        text = one_line(error)
        is_named = text.startswith(f"{section}.")
        message = text if is_named else f"{section}._target_={getattr(config, section).target}: {text}"
        raise ConfigError([message]) from error


def build(section: Target | Open, **supplied: Any) -> Any:
    """Call the target of a section, or bind it where it is partial. What the target raises comes out as it is.

    Values reach it as they stand: Hydra alone would resolve the text ${...} in them.
    """
    is_partial = getattr(section, "partial", False)
    return _made({"_target_": section.target, "_partial_": is_partial, **section.arguments()}, **supplied)


def _made(value: Any, /, **supplied: Any) -> Any:
    """A value with the sections in it called, by the keys that Hydra has for them."""
    if isinstance(value, list):
        return [_made(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = value if value.get("_recursive_") is False else {key: _made(item) for key, item in value.items()}
    if "_target_" not in value:
        return made
    keywords = {key: item for key, item in made.items() if key not in SPECIAL}
    bound = _bound(value["_target_"])
    # as a copy is made of a partial: this one has more than its target, which Hydra goes by at the call
    bound.__setstate__((bound.func, tuple(made.get("_args_", ())), keywords | supplied, vars(bound)))
    return bound if value.get("_partial_") else bound()


def _bound(target: str) -> Any:
    """Hydra's functools.partial of what a dotted name stands for: it refuses what no configuration should call."""
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    try:
        return instantiate({"_target_": target, "_partial_": True})
    except InstantiationException as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None

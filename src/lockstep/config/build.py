"""Builds the objects that the sections of a configuration describe."""

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

from lockstep.config.checks import metric_names
from lockstep.config.checks.workers import resolve_workers
from lockstep.config.errors import ConfigError, config_error, one_line
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import Open, Target
from lockstep.system import processes

SPECIAL = ("_target_", "_partial_", "_args_", "_recursive_", "_convert_")  # Hydra's reserved keys


def monitored_metric(config: Config) -> tuple[str, Literal["min", "max"]]:
    """Return the metric that selects best.ckpt, and whether its "min" or "max" is the best."""
    for section in config.callbacks.values():
        if section is not None and section.target.endswith(".ModelCheckpoint"):
            arguments = section.arguments()
            if arguments.get("monitor"):
                return str(arguments["monitor"]), arguments.get("mode", "min")
    metric, is_max = metric_names.default(config)
    return metric, "max" if is_max else "min"


def resolve_config(config: Config) -> Config:
    """Resolve worker scaling and the preprocessing of pretrained weights, once for a new run.

    The saved configuration contains the resolved values, so that no other code has to know where
    they come from.
    """
    config = _scale_with_workers(config)
    preprocessing = {"crop_percent": 1.0, "interpolation": "bilinear"}
    arguments = config.data.arguments()
    if metric_names.AUTO not in [arguments.get(name) for name in preprocessing]:
        return config
    if config.has_library_network and config.pretrained:
        network = str(config.model.arguments()["name"])
        preprocessing |= _library_preprocessing(config.model.target, network)
    if arguments["fit"] == "letterbox" or arguments["image_size"] is None:
        preprocessing["crop_percent"] = 1.0  # Nothing is cropped.
    resolved_preprocessing = {
        name: value for name, value in preprocessing.items() if arguments[name] == metric_names.AUTO
    }
    return config.model_copy(update={"data": config.data.model_copy(update=resolved_preprocessing)})


@cache
def _library_preprocessing(target: str, network: str) -> dict[str, Any]:
    """Return `crop_percent` and `interpolation`, or nothing for a network without weights.

    torch is not imported in this process.
    """
    return processes.call(_read_preprocessing, target, network)


def _read_preprocessing(target: str, network: str) -> dict[str, Any]:
    """Return the preprocessing with which a library trained the weights of a network.

    The result is empty for a name that the library does not have, which the second round reports.
    """
    from lockstep.models import libraries

    try:
        return libraries.pretrained_preprocessing(target, network)
    except (RuntimeError, ValueError):
        return {}


def _scale_with_workers(config: Config) -> Config:
    """Multiply batch size and learning rate by the number of workers.

    Returns `config` unchanged if `scale_with_workers` is not set.
    """
    if not config.scale_with_workers:
        return config
    num_workers = resolve_workers(config).world_size
    learning_rate = (config.optimizer.lr or 0) * num_workers  # The check requires a learning rate.
    update = {
        "global_batch_size": config.global_batch_size * num_workers,
        "optimizer": config.optimizer.model_copy(update={"lr": learning_rate}),
        "scale_with_workers": False,
    }
    return config.model_copy(update=update)


def scaling_note(config: Config, scaled_config: Config) -> str:
    """Return a line to print with the values that `scale_with_workers` has changed."""
    rates = " -> ".join(
        f"{run_config.optimizer.lr or 0:g}" for run_config in (config, scaled_config)
    )
    sizes = f"{config.global_batch_size} -> {scaled_config.global_batch_size}"
    return f"scale_with_workers: global batch {sizes}, learning rate {rates}"


def section_errors(config: Config, section: str) -> contextlib.AbstractContextManager[None]:
    """Turn a TypeError or ValueError of a section's target into a ConfigError.

    The ConfigError names the `_target_` of the section.
    """
    return target_errors(section, getattr(config, section))


@contextlib.contextmanager
def target_errors(key: str, section: Target) -> Iterator[None]:
    """Turn a TypeError or ValueError of the target of the section at `key` into a ConfigError."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        from lockstep.system.tracebacks import located

        text = located(one_line(error), error)
        if text.startswith(f"{key}."):
            raise config_error("failed", "", text) from error
        name = f"{key}._target_={section.target}"
        raise config_error("failed", name, f": {text}") from error


def build(section: Target | Open, **supplied: Any) -> Any:
    """Call the target of a section, or bind its arguments if it is partial.

    Raises what the target raises. Values are passed unchanged, so a string `${...}` in them is not
    resolved.
    """
    is_partial = getattr(section, "partial", False)
    return _build_value(
        {"_target_": section.target, "_partial_": is_partial, **section.arguments()}, **supplied
    )


def _build_value(value: Any, /, **supplied: Any) -> Any:
    if isinstance(value, list):
        return [_build_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    entries = value
    if value.get("_recursive_") is not False:
        entries = {key: _build_value(item) for key, item in value.items()}
    if "_target_" not in value:
        return entries
    keywords = {key: item for key, item in entries.items() if key not in SPECIAL}
    bound = _partial_target(value["_target_"])
    # Set the state as copying a partial does, because Hydra's partial has attributes that its call
    # needs.
    bound.__setstate__(
        (bound.func, tuple(entries.get("_args_", ())), keywords | supplied, vars(bound))
    )
    return bound if value.get("_partial_") else bound()


def _partial_target(target: str) -> Any:
    """Return Hydra's functools.partial of a dotted name.

    Hydra rejects functions that no configuration should call.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    try:
        return instantiate({"_target_": target, "_partial_": True})
    except InstantiationException as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None


def use_hydra(cfg: Any) -> None:
    """Set Hydra's configuration, resolvers and logging in a worker.

    Custom parts of a training may use them.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.utils import configure_log, setup_globals

    setup_globals()
    HydraConfig.instance().set_config(cfg)
    configure_log(cfg.hydra.job_logging, cfg.hydra.verbose)

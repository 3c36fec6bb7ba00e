"""Finds the preprocessing with which a library trained the weights of a network.

torch is not imported in this process.
"""

from functools import cache
from typing import Any

from lockstep.config.schema.configuration import Config
from lockstep.system import processes


def pretrained_preprocessing(config: Config) -> dict[str, Any]:
    """Return `crop_percent` and `interpolation`, or nothing for a network without weights."""
    return _preprocessing_of(config.model.target, str(config.model.arguments().get("name")))


@cache
def _preprocessing_of(target: str, network: str) -> dict[str, Any]:
    return processes.call(_preprocessing, target, network)


def _preprocessing(target: str, network: str) -> dict[str, Any]:
    """Return the preprocessing that the library defines.

    The result is empty for a name that the library does not have, which the second round reports.
    """
    from lockstep.models import libraries

    try:
        return libraries.pretrained_preprocessing(target, network)
    except (RuntimeError, ValueError):
        return {}

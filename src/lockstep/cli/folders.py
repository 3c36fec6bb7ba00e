"""Folders that Hydra makes for a command."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.config.composing.compose import Source


def check(key: str, default: str, typed: Sequence[str], source: "Source") -> None:
    """Raise ConfigError if the folder of a run or sweep cannot be made: Hydra would show a traceback."""
    from lockstep.assembly import refusals
    from lockstep.config.composing import options
    from lockstep.config.errors import ConfigError

    chosen = options.hydra_value(key, typed, source)
    path = chosen or default
    error = refusals.exposure_reason(chosen) or refusals.write_obstacle(Path(path))
    if error is not None:
        raise ConfigError(error if path == default else error.within(f"{key}={path}"))

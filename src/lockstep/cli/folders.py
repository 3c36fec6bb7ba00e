"""Folders that Hydra makes for a command."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.config.compose import Source


def check(key: str, default: str, typed: Sequence[str], source: "Source") -> None:
    """Raise ConfigError if the folder of a run or sweep cannot be made: Hydra would show a traceback."""
    from lockstep.config import overrides
    from lockstep.config.errors import ConfigError
    from lockstep.training import refusals

    chosen = overrides.hydra_value(key, typed, source)
    path = chosen or default
    error = refusals.exposed(chosen) or refusals.unwritable(Path(path))
    if error is not None:
        raise ConfigError(error if path == default else error.within(f"{key}={path}"))

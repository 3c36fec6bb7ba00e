"""Options of the configuration groups, overrides as Hydra parses them, and its own keys."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lockstep.config.composing.compose import DEFAULT, Source, compose_config
from lockstep.config.errors import ConfigError, Error, one_line
from lockstep.config.schema.key_scopes import EVERYWHERE

REFUSALS = (HydraException, OmegaConfBaseException, YAMLError, ValueError)  # raised by Hydra for a choice or a file


def groups(*folders: Path) -> dict[str, list[str]]:
    """Return the options of every configuration group in some folders, without Hydra's own groups."""
    options_by_group: dict[str, set[str]] = {}
    for folder in folders:
        for file in folder.rglob("*.yaml"):
            group = file.parent.relative_to(folder).as_posix()
            if group != "." and not group.startswith("hydra/"):
                options_by_group.setdefault(group, set()).add(file.stem)
    return {group: sorted(options) for group, options in sorted(options_by_group.items())}


@cache
def parse_override(text: str) -> Override:
    """Parse one override. Raises HydraException."""
    if text.startswith("="):
        raise OverrideParseException(text, "no key")  # Hydra takes the empty text for a key
    return OverridesParser.create().parse_override(text)


def hydra_value(key: str, texts: Sequence[str], source: Source) -> str | None:
    """Return the value of a key of Hydra, None if these overrides leave it to conf/lockstep.yaml. Raises ConfigError.

    Overrides with several values, those of a sweep, are left out.
    """
    parsed_overrides = [parse_override(text) for text in texts]
    may_differ = any(o.is_hydra_override() or o.key_or_group in EVERYWHERE for o in parsed_overrides)
    if not may_differ and source == DEFAULT:
        return None  # composing takes 0.1 s
    kept = [override.input_line or "" for override in parsed_overrides if not override.is_sweep_override()]
    try:
        value = OmegaConf.select(compose_config(kept, source, with_hydra=True), key)
    except REFUSALS as error:
        raise ConfigError(Error(key, f": {one_line(error)}")) from error
    return None if value in (None, ".") else str(value)

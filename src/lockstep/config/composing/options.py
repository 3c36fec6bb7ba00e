"""Options of the configuration groups, and overrides as Hydra parses them."""

from functools import cache
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

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

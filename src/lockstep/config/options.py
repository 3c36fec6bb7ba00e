"""The options of the configuration groups, and one override as Hydra reads it."""

import re
from functools import cache
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

REFUSALS = (HydraException, OmegaConfBaseException, YAMLError, ValueError)  # by Hydra, of a choice or a file


def groups(*folders: Path) -> dict[str, list[str]]:
    """Options of every configuration group below the folders; Hydra knows more of its own groups, hydra/..."""
    options_by_group: dict[str, set[str]] = {}
    for folder in folders:
        for file in folder.rglob("*.yaml"):
            group = file.parent.relative_to(folder).as_posix()
            if group != "." and not group.startswith("hydra/"):
                options_by_group.setdefault(group, set()).add(file.stem)
    return {group: sorted(options) for group, options in sorted(options_by_group.items())}


def targets_of(group: str, *folders: Path) -> set[str]:
    """The `_target_` of each option of a group."""
    files = (file for folder in folders for file in (folder / group).glob("*.yaml"))
    return {target for file in files for target in re.findall(r"^_target_: *(\S+)$", file.read_text(), re.MULTILINE)}


@cache
def parsed(text: str) -> Override:
    """One override as Hydra reads it. Raises HydraException for what Hydra cannot read."""
    if text.startswith("="):
        raise OverrideParseException(text, "no key")  # to Hydra the empty text is a key
    return OverridesParser.create().parse_override(text)

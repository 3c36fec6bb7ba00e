"""Translates overrides as people type them into those that Hydra reads.

People type strings without quotes, and a folder of images in place of settings.
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from hydra.errors import HydraException

from lockstep.config.composing.compose import parse_override
from lockstep.config.errors import Error, config_error
from lockstep.runs.naming import hydra_text
from lockstep.system.text import expand_path


def hydra_overrides(overrides: Sequence[str]) -> list[str]:
    """Return overrides as Hydra reads them, with strings in quotes.

    A folder of images is replaced by the settings that fine-tune a network on it. An override that
    cannot be read stays as it is. Raises ConfigError for a folder together with settings that
    contradict it.
    """
    folders = [line for line in overrides if "=" not in line and os.path.isdir(expand_path(line))]
    lines = [line for line in overrides if line not in folders]
    if folders:
        settings = ["experiment=finetune", f"data.root={hydra_text(folders[0])}"]
        keys = ("experiment", "data", "data.root", "resume")
        conflicts = [line for line in lines if line.partition("=")[0].lstrip("+") in keys]
        if conflicts or len(folders) > 1:
            raise config_error(
                "conflict",
                folders[0],
                f"means {' '.join(settings)}",
                f"remove it, or {' '.join([*folders[1:], *conflicts])}",
            )
        lines = [*settings, *lines]
    return [_quote_text(line) for line in lines]


def _quote_text(line: str) -> str:
    try:
        return parse_override(line).input_line or ""
    except HydraException:  # The check reports it.
        return line


def syntax_error(line: str) -> Error:
    """Describe an override that cannot be read, with the exact syntax for a list of strings."""
    key, _, value = line.partition("=")
    if key and value.startswith("[") and value.endswith("]"):
        entries = ",".join(hydra_text(entry.strip()) for entry in value[1:-1].split(","))
        return Error(
            "value", repr(line), "cannot be read", f"write {shlex.quote(f'{key}=[{entries}]')}"
        )
    if Path(line).is_file():
        return Error(
            "value",
            line,
            "is a file",
            "give the folder of the images, or a list by data=list data.file=...",
        )
    return Error(
        "value",
        repr(line),
        "cannot be read",
        "write setting=value, no spaces around =, special characters in quotes",
    )

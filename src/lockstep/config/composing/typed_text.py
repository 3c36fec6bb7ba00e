"""Translates overrides as people type them into those that Hydra reads.

People type strings without quotes, and a folder of images in place of settings.
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from hydra.errors import HydraException

from lockstep.config.composing.compose import parse_override
from lockstep.config.errors import ConfigError, Error
from lockstep.runs.naming import hydra_text
from lockstep.system.text import expand_path


def hydra_overrides(texts: Sequence[str]) -> list[str]:
    """Return overrides as Hydra reads them, with strings in quotes.

    A folder of images is replaced by the settings that fine-tune a network on it. An override that
    cannot be read stays as it is. Raises ConfigError for a folder together with settings that
    contradict it.
    """
    folders = [text for text in texts if "=" not in text and os.path.isdir(expand_path(text))]
    rest = [text for text in texts if text not in folders]
    if folders:
        settings = ["experiment=finetune", f"data.root={hydra_text(folders[0])}"]
        keys = ("experiment", "data", "data.root", "resume")
        others = [text for text in rest if text.partition("=")[0].lstrip("+") in keys]
        if others or len(folders) > 1:
            problem, fix = (
                f"means {' '.join(settings)}",
                f"remove it, or {' '.join([*folders[1:], *others])}",
            )
            raise ConfigError(Error("conflict", folders[0], problem, fix))
        rest = [*settings, *rest]
    return [_quote_text(text) for text in rest]


def _quote_text(text: str) -> str:
    try:
        return parse_override(text).input_line or ""
    except HydraException:  # The check reports it.
        return text


def syntax_error(text: str) -> Error:
    """Describe an override that cannot be read, with the exact syntax for a list of strings."""
    key, _, value = text.partition("=")
    if key and value.startswith("[") and value.endswith("]"):
        entries = ",".join(hydra_text(entry.strip()) for entry in value[1:-1].split(","))
        return Error(
            "value", repr(text), "cannot be read", f"write {shlex.quote(f'{key}=[{entries}]')}"
        )
    if Path(text).is_file():
        return Error(
            "value",
            text,
            "is a file",
            "give the folder of the images, or a list by data=list data.file=...",
        )
    if Path(text).is_dir():
        return Error("value", text, "is a folder", f"write {shlex.quote(f'data.root={text}')}")
    return Error(
        "value",
        repr(text),
        "cannot be read",
        "write setting=value, no spaces around =, special characters in quotes",
    )

"""Settings that were typed as options, `--batch-size 32`, as other projects have them: what to write in their place."""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.config.errors import ConfigError

if TYPE_CHECKING:
    from lockstep.config.compose import Source


def refuse(words: Sequence[str], parser: ArgumentParser, source: "Source") -> None:
    """Raise ConfigError with a line for each word of a command line that has dashes, and is no option of `parser`."""
    settings = _settings(words, parser)
    if not settings:
        return
    from lockstep.config import overrides  # which --help does without

    errors = []
    for typed, setting in settings:
        try:
            overrides.plan([setting], source, is_multirun="," in setting)
            errors.append(f"{typed}: settings have no dashes: write {setting}")
        except ConfigError as error:
            errors += [f"{typed}: {message}" for message in error.errors]
    raise ConfigError(errors)


def _settings(words: Sequence[str], parser: ArgumentParser) -> list[tuple[str, str]]:
    """What was typed as an option that is none, and the setting that it would be."""
    _, unknown = parser.parse_known_args(words)
    settings = []
    for index, word in enumerate(words):
        if not word.startswith("-") or word not in unknown:
            continue
        name, has_value, value = word.lstrip("-").partition("=")
        following = words[index + 1] if index + 1 < len(words) else "-"
        if not has_value and "=" not in following and not following.startswith("-"):
            word, value = f"{word} {following}", following
        settings.append((word, f"{name.replace('-', '_')}={value or 'true'}"))
    return settings

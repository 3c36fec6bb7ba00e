"""What is wrong with a configuration: every error at once, each with its key and its hint."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import yaml

from lockstep.runs.folder import EXIT_CONFIG
from lockstep.system.kinds import LARGEST
from lockstep.system.redaction import redacted
from lockstep.system.wording import plural

PREFIX = "config error: "


class ConfigError(ValueError):
    """All errors of a configuration, one line each."""

    def __init__(self, errors: Sequence[str]) -> None:
        self.errors = [redacted(error) for error in errors]
        super().__init__("\n".join(self.errors))


def exit_with(error: ConfigError) -> NoReturn:
    """Print every error and leave with the exit code of a bad configuration."""
    for message in error.errors:
        print(f"{PREFIX}{message}", file=sys.stderr)
    print(f"{plural(len(error.errors), 'error')}; nothing was started. See --help.", file=sys.stderr)
    raise SystemExit(EXIT_CONFIG)


def one_line(error: BaseException) -> str:
    """What an error says, without what Hydra and OmegaConf add of their inner life."""
    lines = []
    for line in str(error).strip().splitlines():
        if line.strip().startswith(("full_key:", "object_type=", "Config search path:", "To append to your")):
            break
        lines.append(line)
    return " ".join(" ".join(lines).split())


def shown(value: Any) -> str:
    """A value as it is typed, in quotes where it is a text that looks like something else."""
    if not isinstance(value, str):
        return json.dumps(value, default=str, separators=(",", ":"))
    try:
        is_plain = yaml.safe_load(value) == value
    except yaml.YAMLError:
        is_plain = True
    return value if is_plain else f"'{value}'"


def unfit(key: str, value: Any, wanted: str, *, is_text: bool) -> str:
    """The error of a value that is not what is `wanted`, "" where it is too large; `is_text` if its text would do."""
    text = shown(value)
    if not wanted:
        return f"{key}={text} is too large: {LARGEST:,} at most"
    return f"{key}={text} must be {wanted}" + (f": write \"{key}='{text}'\"" if is_text else "")


def several(names: Sequence[str], most: int = 3) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def near(name: str, names: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """The names that are most like one; upper case counts as lower where none is like it."""
    from difflib import get_close_matches  # 10 ms that a good configuration does not need

    names = list(names)
    by_lower = {other.lower(): other for other in names}
    matches = get_close_matches(name, names, count, cutoff)
    return matches or [by_lower[other] for other in get_close_matches(name.lower(), by_lower, count, cutoff)]


def question(meant: Sequence[str], otherwise: str) -> str:
    """The end of an error: the names that may have been meant, else what there is to do."""
    return f": did you mean {' or '.join(meant)}?" if meant else f": {otherwise}"

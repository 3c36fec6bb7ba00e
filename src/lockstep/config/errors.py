"""Collects the errors of a configuration and prints them together, each with its key and a hint."""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import yaml
from typing_extensions import override

from lockstep.runs import naming
from lockstep.runs.folder import EXIT_CONFIG
from lockstep.system.redaction import redact
from lockstep.system.types import MAX_INTEGER

PREFIX = "config error: "
# Matches from the first line of details to the end.
HYDRA_DETAILS = re.compile(
    r"(?ms)^\s*(full_key:|object_type=|Config search path:|To append to your).*"
)
Code = Literal[
    "unknown",  # No such setting, option, name or target exists.
    "missing",  # A value, a file, a folder or a definition does not exist.
    "value",  # No configuration can have this value, because of its type, format or range.
    "range",  # A number does not fit other settings, the data or the run.
    "conflict",  # The setting excludes another one or this command, or has no effect.
    "unsupported",  # The network, the task, the data or the target does not support it.
    "machine",  # This machine has no such GPU, core or interface.
    "not-installed",  # A package or a program is not installed.
    "access",  # A file or a folder cannot be opened, created or written.
    "damaged",  # The content of a file cannot be read.
    "exists",  # It already exists, or was already done.
    "changed",  # Settings, data or code differ from those of the run or the sweep.
    "busy",  # Another process or job uses it.
    "untrusted",  # It needs --trust.
    "failed",  # Other code raised the error: a target, a library, a scheduler or a worker.
]


class Error(NamedTuple):
    """One error of a configuration.

    `key` is the setting as it was typed, a file or a run, or "". `hint` may be "", too. A `problem`
    that begins with a comma or a colon follows the key without a space. `str` returns the line to
    print, which does not contain the code.
    """

    code: Code
    key: str
    problem: str
    hint: str = ""

    @override
    def __str__(self) -> str:
        space = " " if self.key and self.problem[:1] not in (",", ":") else ""
        return f"{self.key}{space}{self.problem}" + (f": {self.hint}" if self.hint else "")

    def within(self, location: str) -> "Error":
        """Return this error with a prefix for the file, environment or node it belongs to."""
        return self._replace(key=f"{location}: {self.key}".rstrip())


Errors = Iterator[Error]


class ConfigError(ValueError):
    """All errors of a configuration, one line each."""

    def __init__(self, *errors: Error) -> None:
        self.errors: list[Error] = [
            Error(code, *map(redact, fields)) for code, *fields in dict.fromkeys(errors)
        ]
        super().__init__(*self.errors)

    @override
    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def config_error(code: Code, key: str, problem: str, hint: str = "") -> ConfigError:
    """Return a ConfigError with a single error."""
    return ConfigError(Error(code, key, problem, hint))


def refuse(errors: Iterable[Error]) -> None:
    """Raise a ConfigError with all of these errors, if there are any."""
    all_errors = list(errors)
    if all_errors:
        raise ConfigError(*all_errors)


class Refused(Exception):
    """Ends a run for lack of memory or disk space, and has the text to print as its message."""


def report(error: ConfigError) -> str:
    """Return the lines to print, which `errors_of` can parse."""
    return "".join(f"{PREFIX}{entry}\n" for entry in error.errors)


def exit_with(error: ConfigError) -> NoReturn:
    """Print every error and exit with the code of a bad configuration."""
    # A worker does not need this module.
    from lockstep.system import json_output

    json_output.put_errors(error)
    print(f"{report(error)}Nothing was started. See --help.", file=sys.stderr)
    raise SystemExit(EXIT_CONFIG)


def errors_of(problem: object) -> list[Error]:
    """Return the errors of a ConfigError, or one error per line of a text or of another exception.

    The errors of a text or of another exception have no key.
    """
    if isinstance(problem, ConfigError):
        return problem.errors
    code = "missing" if isinstance(problem, FileNotFoundError) else "failed"
    return [
        Error(code, "", line.removeprefix(PREFIX)) for line in str(problem).splitlines() or [""]
    ]


def file_error(error: OSError) -> Error:
    """Return the error of a file or folder that `runs.permissions` refuses."""
    return Error("access", naming.display_path(Path(error.filename)), str(error.strerror))


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line.

    The internal details that Hydra and OmegaConf append are left out.
    """
    return " ".join(HYDRA_DETAILS.sub("", str(error)).split())


def literal(value: Any) -> str:
    """Return a value as it is typed.

    A string that looks like another type is put in quotes.
    """
    if not isinstance(value, str):
        return json.dumps(value, default=str, separators=(",", ":"))
    try:
        is_plain = yaml.safe_load(value) == value
    except (yaml.YAMLError, ValueError):
        # YAML rejects a day that does not exist, such as 2026-06-31.
        is_plain = True
    return value if is_plain else f"'{value}'"


def mismatch(key: str, value: Any, expectation: str, *, as_text: bool) -> Error:
    """Describe a value that does not meet `expectation`, or is too large if that is empty.

    `as_text` suggests quotes, if the value would be valid as a string.
    """
    value_text = literal(value)
    error = Error("value", f"{key}={value_text}", f"must be {expectation}")
    if not expectation:
        return error._replace(problem="is too large", hint=f"{MAX_INTEGER:,} at most")
    is_list = expectation.startswith("[") and ", ...]" in expectation
    if is_list and not isinstance(value, list | dict):
        return error._replace(hint=f"write {key}=[{value_text}]")
    return error._replace(hint=f"write \"{key}='{value_text}'\"") if as_text else error

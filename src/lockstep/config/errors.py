"""Errors of a configuration, collected and printed together, each with its key and a hint."""

import json
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import yaml
from typing_extensions import override

from lockstep.runs import naming
from lockstep.runs.folder import EXIT_CONFIG
from lockstep.system.kinds import MAX_INTEGER
from lockstep.system.redaction import redact
from lockstep.system.wording import plural

PREFIX = "config error: "
Code = Literal[
    "unknown",  # no such setting, option, name or target
    "missing",  # a value, a file, a folder or a definition is not there
    "value",  # a value that no configuration can have: its type, its form, its range
    "range",  # a number that does not fit other settings, the data or the run
    "conflict",  # it excludes another setting or this command, or has no effect
    "unsupported",  # the network, the task, the data or the target cannot do it
    "machine",  # this machine has no such GPU, core or interface
    "not-installed",  # a package or a program is not installed
    "access",  # a file or a folder cannot be opened, made or written
    "damaged",  # the content of a file cannot be read
    "exists",  # it is there, or done, already
    "changed",  # settings, data or code are not those of the run or the sweep
    "busy",  # another process or job has it
    "untrusted",  # it needs --trust
    "failed",  # other code refused, in its own words: a target, a library, a scheduler, a worker
]


class Error(NamedTuple):
    """One error: its code, the setting as it was typed, a file or a run (or ""), the problem, and the fix (or "").

    A problem that begins with a comma or a colon follows the key without a space. `str` is the line
    to print, which has no code.
    """

    code: Code
    key: str
    problem: str
    fix: str = ""

    @override
    def __str__(self) -> str:
        space = " " if self.key and self.problem[:1] not in (",", ":") else ""
        return f"{self.key}{space}{self.problem}" + (f": {self.fix}" if self.fix else "")

    def within(self, where: str) -> "Error":
        """Return this error of a part: of a file, an environment, a node."""
        return self._replace(key=f"{where}: {self.key}".rstrip())


class ConfigError(ValueError):
    """All errors of a configuration, one line each."""

    def __init__(self, *errors: Error) -> None:
        unique = dict.fromkeys(errors)
        self.errors: list[Error] = [Error(code, *map(redact, texts)) for code, *texts in unique]
        super().__init__(*self.errors)

    @override
    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


class Refused(Exception):
    """Ends a run for lack of memory or disk space. Its text is printed."""


def report(error: ConfigError) -> str:
    """Return the lines to print, which `errors_of` reads."""
    return "".join(f"{PREFIX}{each}\n" for each in error.errors)


def exit_with(error: ConfigError) -> NoReturn:
    """Print every error and exit with the code of a bad configuration."""
    from lockstep.system import json_output  # a worker does not need it

    json_output.put_errors(error)
    print(
        f"{report(error)}{plural(len(error.errors), 'error')}; nothing was started. See --help.",
        file=sys.stderr,
    )
    raise SystemExit(EXIT_CONFIG)


def errors_of(text: object) -> list[Error]:
    """Return the errors of a ConfigError, or of a text or another exception with a line for each: those have no key."""
    if isinstance(text, ConfigError):
        return text.errors
    code = "missing" if isinstance(text, FileNotFoundError) else "failed"
    return [Error(code, "", line.removeprefix(PREFIX)) for line in str(text).splitlines() or [""]]


def file_error(error: OSError) -> Error:
    """Return the error of a file that `runs.gate` refuses."""
    return Error("access", naming.display_path(Path(error.filename)), str(error.strerror))


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line, without the internal details that Hydra and OmegaConf append."""
    lines = []
    for line in str(error).strip().splitlines():
        if line.strip().startswith(
            ("full_key:", "object_type=", "Config search path:", "To append to your")
        ):
            break
        lines.append(line)
    return " ".join(" ".join(lines).split())


def literal(value: Any) -> str:
    """Return a value as it is typed, in quotes if it is a string that looks like another type."""
    if not isinstance(value, str):
        return json.dumps(value, default=str, separators=(",", ":"))
    try:
        is_plain = yaml.safe_load(value) == value
    except (yaml.YAMLError, ValueError):  # a day that does not exist, 2026-06-31
        is_plain = True
    return value if is_plain else f"'{value}'"


def mismatch(key: str, value: Any, expected: str, *, as_text: bool) -> Error:
    """Describe a value that is not `expected`, or too large if that is empty; `as_text` if it would do in quotes."""
    text = literal(value)
    if not expected:
        return Error("value", f"{key}={text}", "is too large", f"{MAX_INTEGER:,} at most")
    if expected.startswith("[") and ", ...]" in expected and not isinstance(value, list | dict):
        return Error("value", f"{key}={text}", f"must be {expected}", f"write {key}=[{text}]")
    return Error(
        "value",
        f"{key}={text}",
        f"must be {expected}",
        f"write \"{key}='{text}'\"" if as_text else "",
    )

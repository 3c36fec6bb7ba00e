"""Command lines: a parser of commands, and overrides between options."""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from typing_extensions import override

from lockstep.system import json_output
from lockstep.system.internals import hydra_parser
from lockstep.system.wording import near_names, question


class CommandParser(argparse.ArgumentParser):
    """Prints its help if there is no command, and suggests the nearest one if it is unknown. Errors are JSON, too.

    Its `add_subparsers` need the metavar COMMAND. Raises ValueError, with one line.
    """

    @override
    def error(self, message: str) -> NoReturn:
        if message.endswith("required: COMMAND"):
            self.print_help()
            self.exit()
        if found := re.search(r"COMMAND: invalid choice: '(.*)' \(choose from (.*)\)", message):
            fix = question(near_names(found[1], re.findall(r"[\w-]+", found[2])), f"see {self.prog} --help")
            raise ValueError(f"{found[1]} is not a command of {self.prog}: {fix}")
        code = "unknown" if message.startswith("unrecognized") else "value"
        json_output.put_errors(message, code=code, hint=f"see {self.prog} --help")
        super().error(message)


def parse_arguments(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; `overrides` may be on any side of options, where argparse accepts one side."""
    arguments, rest = parser.parse_known_args(words)
    if wrong := [word for word in rest if "overrides" not in arguments or word.startswith("-")]:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments


def hydra_arguments() -> argparse.Namespace:
    """Parse this command as Hydra does, and join the overrides in `sys.argv`, which Hydra parses again.

    `unknown` of the result lists options that Hydra lacks, each with its text as a setting: ("--epochs", "epochs=5").
    """
    words = sys.argv[1:]
    parser = hydra_parser()
    parser.allow_abbrev = False  # --config is not --config-name
    arguments, rest = parser.parse_known_args(words)
    arguments.overrides += [word for word in rest if not word.startswith("-")]
    arguments.unknown = []
    for word, following in zip(words, [*words, "-"][1:], strict=True):
        if word.startswith("-") and word in rest:
            value = "..." if following.startswith("-") or "=" in following else following
            option, _, value = (word if "=" in word else f"{word}={value}").partition("=")
            arguments.unknown.append((option, f"{option.lstrip('-').replace('-', '_')}={value}"))
    if rest:
        options = [word for word in words if word not in arguments.overrides]
        sys.argv[1:] = [*arguments.overrides, *options]  # options last: --info would take an override for its value
    return arguments

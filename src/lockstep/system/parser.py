"""Parses command lines with commands, and with overrides between options."""

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

from typing_extensions import override

from lockstep.system import json_output
from lockstep.system.text import near_names, question


class CommandParser(argparse.ArgumentParser):
    """Parses a command line with commands, and suggests the nearest command for an unknown one.

    It prints its help if there is no command. Errors are also added to the JSON output. Its
    `add_subparsers` need the metavar COMMAND. Raises ValueError, with one line, for an unknown
    command.
    """

    @override
    def error(self, message: str) -> NoReturn:
        if message.endswith("required: COMMAND"):
            self.print_help()
            self.exit()
        if match := re.search(r"COMMAND: invalid choice: '(.*)' \(choose from (.*)\)", message):
            hint = question(
                near_names(match[1], re.findall(r"[\w-]+", match[2])), f"see {self.prog} --help"
            )
            raise ValueError(f"{match[1]} is not a command of {self.prog}: {hint}")
        code = "unknown" if message.startswith("unrecognized") else "value"
        json_output.put_errors(message, code=code, hint=f"see {self.prog} --help")
        super().error(message)


def parse_arguments(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments, with `overrides` before, between and after options.

    argparse itself accepts them on only one side of the options.
    """
    arguments, extras = parser.parse_known_args(words)
    if unknown_arguments := [
        word for word in extras if "overrides" not in arguments or word.startswith("-")
    ]:
        parser.error(f"unrecognized arguments: {' '.join(unknown_arguments)}")
    if extras:
        arguments.overrides = [*arguments.overrides, *extras]
    return arguments

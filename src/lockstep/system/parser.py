"""Parses command lines with commands, and with overrides between options."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from typing_extensions import override

from lockstep.system import json_output


class CommandParser(argparse.ArgumentParser):
    """Parses a command line with commands, and prints its help if there is no command.

    Errors are also added to the JSON output. Its `add_subparsers` need the metavar COMMAND.
    """

    @override
    def error(self, message: str) -> NoReturn:
        if message.endswith("required: COMMAND"):
            self.print_help()
            self.exit()
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

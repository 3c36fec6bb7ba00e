"""`lockstep data`: checks images, or downloads what a training needs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.runs import naming
from lockstep.system import json_output

if TYPE_CHECKING:
    from lockstep.config.composing.compose import Source


def add_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="data_command")
    help_text = (
        "check all images for errors, duplicates, near-duplicates and leaks between splits; "
        "exit code 1 for errors"
    )
    check = commands.add_parser("check", help=help_text, description=help_text)
    help_text = (
        "download the data and pretrained weights that a training needs, for jobs without a network"
    )
    fetch = commands.add_parser("fetch", help=help_text, description=help_text)
    for data_parser in (check, fetch):
        data_parser.add_argument(
            "overrides",
            nargs="*",
            default=[],
            metavar="FOLDER|setting=value",
            help="folder or URL of images, and settings, as for lockstep train",
        )
        json_output.add_option(data_parser)
    check.add_argument(
        "--pictures",
        metavar="FILE",
        help="PNG file to write: the worst pairs of duplicates, leaks and contradictions first",
    )
    fetch.add_argument(
        "--folders",
        metavar="DIR",
        type=Path,
        help="new folder for the images as PNG files: train/CLASS and test/CLASS",
    )


def run_data_command(arguments: argparse.Namespace, source: "Source") -> int:
    from lockstep.cli import check, fetch
    from lockstep.config import errors

    try:
        overrides = arguments.overrides
        places = [
            line
            for line in overrides
            if "://" in line.partition("=")[0] or not ("=" in line or line.startswith("~"))
        ]
        if len(places) == 1:
            settings = [line for line in overrides if line not in places]
            overrides = [
                "data=image_folder",
                f"data.root={naming.hydra_text(places[0])}",
                *settings,
            ]
        if arguments.data_command == "check":
            return check.check(
                overrides, source, is_json=arguments.json, pictures=arguments.pictures
            )
        return fetch.fetch(overrides, source, arguments.folders)
    except errors.ConfigError as error:
        errors.exit_with(error)

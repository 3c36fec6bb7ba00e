"""`lockstep data`: the arguments of its commands; checks, downloads, or decodes images before the first training."""

import argparse
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockstep.runs import naming
from lockstep.runs.files import answer
from lockstep.runs.folder import EXIT_CONFIG
from lockstep.system import json_output
from lockstep.system.wording import plural

if TYPE_CHECKING:
    from lockstep.config.composing.compose import Source

SETTINGS: dict[str, Any] = {"nargs": "*", "default": [], "metavar": "setting=value"}  # an argument of commands


def add_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="data_command")
    text = "decode a folder of images before the first training; defaults are in conf/data/image_folder.yaml"
    preparing = commands.add_parser("prepare", help=text, description=text)
    preparing.add_argument("root", help="folder or URL: one folder per class, or train/, val/ and test/ of these")
    text = "size to resize and crop to; null: all have one"
    preparing.add_argument("--image-size", metavar="N|[H,W]|null", help=text)
    preparing.add_argument("--channels", metavar="1|3", help="1: grey, 3: RGB")
    preparing.add_argument("--cache", metavar="FOLDER", help="folder for the decoded images")
    for name, text in (
        ("check", "check all images for errors, near and equal copies, leaks between splits; exit code 1 for errors"),
        ("fetch", "download the data and pretrained weights that a training needs, for jobs without a network"),
    ):
        subparser = commands.add_parser(name, help=text, description=text)
        text = "folder or URL, as for prepare, and settings, as for lockstep train"
        subparser.add_argument("overrides", **{**SETTINGS, "metavar": "FOLDER|setting=value"}, help=text)
        if name == "check":
            text = "PNG file to write: the worst pairs of copies, leaks and contradictions first"
            subparser.add_argument("--pictures", metavar="FILE", help=text)
    for subparser in commands.choices.values():
        subparser.add_argument(json_output.OPTION, action="store_true", help="print one JSON value only")


def run_data_command(arguments: argparse.Namespace, source: "Source") -> int:
    from lockstep.cli import check, fetch
    from lockstep.config import errors

    try:
        if arguments.data_command == "prepare":
            changes = {name: getattr(arguments, name) for name in ("image_size", "channels", "cache")}
            return prepare(arguments.root, changes, source)
        typed = arguments.overrides
        places = [
            text for text in typed if "://" in text.partition("=")[0] or not ("=" in text or text.startswith("~"))
        ]
        if len(places) == 1:
            settings = [text for text in typed if text not in places]
            typed = ["data=image_folder", f"data.root={naming.hydra_text(places[0])}", *settings]
        if arguments.data_command == "check":
            return check.check(typed, source, is_json=arguments.json, pictures=arguments.pictures)
        return fetch.fetch(typed, source)
    except errors.ConfigError as error:
        errors.exit_with(error)


def prepare(root: str, changes: Mapping[str, str | None], source: "Source") -> int:
    """Decode the images of a folder into the cache, with these `changes` of data.*. Returns the exit code."""
    from lockstep.config import overrides

    changed = {"root": naming.hydra_text(root), **{name: value for name, value in changes.items() if value is not None}}
    if changed.get("cache", "null") != "null":
        changed["cache"] = naming.hydra_text(changed["cache"])
    typed = ["data=image_folder", *(f"data.{name}={value}" for name, value in changed.items())]
    config = overrides.check(typed, source).configs[0]
    section = config.data
    if section.arguments()["cache"] is None:
        raise ValueError("data.cache=null keeps nothing: name a folder with --cache.")
    import torch

    from lockstep.assembly.listed_images import files_of, header_rows
    from lockstep.assembly.staging import once_a_node
    from lockstep.data.splits import ImageError

    decoding = once_a_node(section, files_of, rank=0, local_rank=0, is_silent=False)
    is_new = decoding.open_cache() is None
    try:
        images = decoding.load_pixels()
    except ImageError as error:
        print("\n".join(f"lockstep: {message}" for message in error.errors), file=sys.stderr)
        json_output.put_errors(error)
        return EXIT_CONFIG
    shrunk = dict(header_rows(config, decoding.list_splits()))["shrunk"]
    names = decoding.table.class_names
    assert isinstance(images, torch.Tensor), "cropped"
    count, channels, height, width = images.shape
    facts = {"images": count, "image_shape": list(images.shape[1:]), "class_names": list(names), "is_new": is_new}
    answer(facts | {"cache": str(decoding.path), "bytes": images.nbytes, "overrides": typed})
    print(
        f"{plural(count, 'image')} of {channels}x{height}x{width} "
        f"in {plural(len(names), 'class', 'classes')}: {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}\n"
        f"{'Decoded into' if is_new else 'Up to date:'} {decoding.path} ({images.nbytes / 2**20:,.1f} MiB)"
    )
    if shrunk:
        print(f"Shrunk {shrunk}")
    print(f"Train with:\n  {naming.training_command()} {shlex.join(typed)}")
    return 0

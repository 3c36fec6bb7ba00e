"""Parses the arguments of `python train.py`: options, with overrides before and after them."""

import argparse
from collections.abc import Sequence

FLAGS = (
    ("-h", "--help"),
    ("--version",),
    ("--trust",),
    ("--json",),
    ("-m", "--multirun"),
    ("--resolve",),
    ("-sc", "--shell-completion"),
)
VALUES = (("-cn", "--config-name"), ("-cd", "--config-dir"), ("-cp", "--config-path"))


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a training, as Hydra did.

    `unknown` of the result lists options that no training has, each with its text as a setting:
    ("--epochs", "epochs=5").
    """
    parser = argparse.ArgumentParser(prog="train.py", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for names in FLAGS:
        parser.add_argument(*names, action="store_true")
    for names in VALUES:
        parser.add_argument(*names)
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    arguments, rest = parser.parse_known_args(words)
    arguments.overrides += [word for word in rest if not word.startswith("-")]
    arguments.unknown = []
    for word, following in zip(words, [*words, "-"][1:], strict=True):
        if word.startswith("-") and word in rest:
            option, equals, value = word.partition("=")
            if not equals:
                value = "..." if following.startswith("-") or "=" in following else following
            key = option.lstrip("-").replace("-", "_")
            arguments.unknown.append((option, f"{key}={value}"))
    return arguments

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
    for option_names in FLAGS:
        parser.add_argument(*option_names, action="store_true")
    for option_names in VALUES:
        parser.add_argument(*option_names)
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    arguments, extras = parser.parse_known_args(words)
    arguments.overrides += [word for word in extras if not word.startswith("-")]
    arguments.unknown = []
    for word, next_word in zip(words, [*words, "-"][1:], strict=True):
        if word.startswith("-") and word in extras:
            option, equals, value = word.partition("=")
            if not equals:
                value = "..." if next_word.startswith("-") or "=" in next_word else next_word
            arguments.unknown.append((option, f"{option.lstrip('-').replace('-', '_')}={value}"))
    return arguments

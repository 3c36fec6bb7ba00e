"""Reads nested dicts and lists, as in YAML and JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

Tree = dict[str, Any]  # content of a YAML file
KeyPath = Sequence[str]  # keys from the root to a value

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # uses libyaml if PyYAML has it
MAX_DEPTH = 100  # levels; libyaml crashes at some ten thousand
# The time to read 1:1:1... grows with the square of its length, and Python prints at most 4300
# digits.
MAX_NUMBER_CHARACTERS = 1000
# This is the limit of a YAML text. The dotted keys of all its leaves may have ten times as many
# characters.
MAX_TEXT_CHARACTERS = 2**20


def from_yaml(source: str) -> Any:
    """Parse YAML.

    Raises YAMLError. Raises ValueError for content that takes long: aliases, deep trees, long keys
    and numbers.
    """
    if len(source) > MAX_TEXT_CHARACTERS:
        raise ValueError(f"it is longer than {MAX_TEXT_CHARACTERS:,} characters")
    # These count the characters of the last scalar, of those before the open collections, and of
    # all paths.
    length = path_length = characters = 0
    key_lengths: list[int] = []
    for event in yaml.parse(source, LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("an alias (*name) is not supported: write the value itself")
        if isinstance(event, yaml.CollectionStartEvent):
            key_lengths.append(length)
            path_length += length
        elif isinstance(event, yaml.CollectionEndEvent):
            path_length -= key_lengths.pop()
        elif isinstance(event, yaml.ScalarEvent):
            length = len(event.value)
            characters += path_length
        if len(key_lengths) > MAX_DEPTH:
            raise ValueError(f"it is nested in more than {MAX_DEPTH} levels")
        if characters > 10 * MAX_TEXT_CHARACTERS:
            raise ValueError("its keys are too long")
    return yaml.load(source, _Loader)


class _Loader(LOADER):  # pyright: ignore[reportGeneralTypeIssues]
    def construct_scalar(self, node: Any) -> Any:
        if len(node.value) > MAX_NUMBER_CHARACTERS and node.tag.endswith((":int", ":float")):
            raise ValueError(f"a number has more than {MAX_NUMBER_CHARACTERS:,} characters")
        return super().construct_scalar(node)


def leaves(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every leaf, where an empty section is a leaf."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{prefix}.{key}".lstrip("."))
    else:
        yield prefix, tree


def at(tree: Any, path: KeyPath) -> Any:
    """Return the value at a path, or None."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree

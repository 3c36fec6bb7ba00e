"""Nested dicts and lists, as in YAML and JSON."""

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, where PyYAML has it
DEEPEST = 100  # levels; libyaml crashes at some ten thousand
LONGEST = 1000  # letters of a number: 1:1:1... takes the square of the time, and Python prints 4300 digits at most
LARGEST = 2**20  # letters of a YAML text, and ten times as many of the dotted keys of its leaves


def from_yaml(text: str) -> Any:
    """Parse YAML. Raises YAMLError, and ValueError for what takes long: aliases, deep trees, long keys and numbers."""
    if len(text) > LARGEST:
        raise ValueError(f"it is longer than {LARGEST:,} letters")
    length = above = letters = 0  # of the last scalar, of those before the open collections, and of all paths
    opened: list[int] = []
    for event in yaml.parse(text, LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("an alias (*name) is not supported: write the value itself")
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append(length)
            above += length
        elif isinstance(event, yaml.CollectionEndEvent):
            above -= opened.pop()
        elif isinstance(event, yaml.ScalarEvent):
            length = len(event.value)
            letters += above
        if len(opened) > DEEPEST:
            raise ValueError(f"it is nested in more than {DEEPEST} levels")
        if letters > 10 * LARGEST:
            raise ValueError("its keys are too long")
    return yaml.load(text, _Loader)


class _Loader(LOADER):  # pyright: ignore[reportGeneralTypeIssues]
    def construct_scalar(self, node: Any) -> Any:
        if len(node.value) > LONGEST and node.tag.endswith((":int", ":float")):
            raise ValueError(f"a number has more than {LONGEST:,} letters")
        return super().construct_scalar(node)


def leaves(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every leaf; an empty section is a leaf."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{prefix}.{key}".lstrip("."))
    else:
        yield prefix, tree


def at(tree: Any, path: Iterable[str]) -> Any:
    """Return the value at a path, or None."""
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree

"""Nested dicts and lists, as in YAML and JSON."""

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, where PyYAML has it
DEEPEST = 100  # levels; libyaml crashes at some ten thousand


def from_yaml(text: str) -> Any:
    """Parse YAML. Raises YAMLError, and ValueError for deep trees and for aliases, which can expand to billions."""
    depth = 0
    for event in yaml.parse(text, LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("an alias (*name) is not supported: write the value itself")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"it is nested in more than {DEEPEST} levels")
    return yaml.load(text, LOADER)


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

"""Nested dicts and lists, as in YAML and JSON."""

from collections.abc import Iterable, Iterator
from typing import Any

import yaml


def from_yaml(text: str) -> Any:
    """Parse YAML. Raises YAMLError, and ValueError for aliases, which can expand to billions of values."""
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
        raise ValueError("an alias (*name) is not supported: write the value itself")
    return yaml.safe_load(text)


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

"""Plain trees of values, as YAML and JSON have them."""

from collections.abc import Iterable, Iterator
from typing import Any

import yaml


def from_yaml(text: str) -> Any:
    """The tree of a text. Raises YAMLError, and ValueError for aliases: a few bytes of them are billions of values."""
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
        raise ValueError("an alias, *name, stands for a value: write the value itself")
    return yaml.safe_load(text)


def leaves(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """(key, value) of everything that is no section, with a prefix and dots."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{prefix}.{key}".lstrip("."))
    else:
        yield prefix, tree


def at(tree: Any, path: Iterable[str]) -> Any:
    """The value at a path, None where there is none."""
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree

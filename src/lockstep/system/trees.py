"""Plain trees of values, as YAML and JSON have them."""

from collections.abc import Iterable, Iterator
from typing import Any


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

"""Whether a value of the configuration fits an annotation, read from its text: nothing is imported.

Built-in types, their unions and containers are known. A value fits every other annotation: only the call can tell.
"""

import ast
from typing import Any

NUMBERS = {"int": int, "float": int | float}
PLAIN = {"str": str, "bool": bool, "list": list, "tuple": list, "set": list, "dict": dict}
SEQUENCES = ("list", "List", "set", "Set", "frozenset", "FrozenSet", "Sequence", "Iterable", "Collection")
TEXT_IS_ONE = ("Sequence", "Iterable", "Collection")  # a text is a sequence of texts
MAPPINGS = ("dict", "Dict", "Mapping", "MutableMapping")


def fits(annotation: str, value: Any) -> bool:
    """Whether `value`, as YAML gives it, may be meant for a parameter with this annotation."""
    try:
        node = ast.parse(annotation, mode="eval").body
    except SyntaxError:
        return True
    return _fits(node, value)


def _fits(node: ast.expr, value: Any) -> bool:
    if isinstance(value, dict) and "_target_" in value:
        return True  # what its target returns
    if isinstance(node, ast.Constant):
        return value is None if node.value is None else not isinstance(node.value, str) or fits(node.value, value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _fits(node.left, value) or _fits(node.right, value)
    if isinstance(node, ast.Name) and node.id in NUMBERS:
        return isinstance(value, NUMBERS[node.id]) and not isinstance(value, bool)
    if isinstance(node, ast.Name) and node.id in PLAIN:
        return isinstance(value, PLAIN[node.id])
    return not isinstance(node, ast.Subscript) or _fits_generic(node, value)


def _fits_generic(node: ast.Subscript, value: Any) -> bool:
    name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if not inner:  # tuple[()] is the empty one; of another type `[()]` says nothing
        return value == [] or name not in ("tuple", "Tuple")
    if name == "Optional":
        return value is None or _fits(inner[0], value)
    if name == "Union":
        return any(_fits(part, value) for part in inner)
    if name == "Annotated":
        return _fits(inner[0], value)
    if name == "Literal":
        return any(_is_literal(part, value) for part in inner)
    if name in SEQUENCES:
        if isinstance(value, str):
            return name in TEXT_IS_ONE and _fits(inner[0], value)
        return isinstance(value, list) and all(_fits(inner[0], item) for item in value)
    if name in ("tuple", "Tuple"):
        if not isinstance(value, list):
            return False
        if isinstance(inner[-1], ast.Constant) and inner[-1].value is ...:
            return all(_fits(inner[0], item) for item in value)
        return len(value) == len(inner) and all(map(_fits, inner, value))
    if name in MAPPINGS:
        return isinstance(value, dict) and all(_fits(inner[-1], item) for item in value.values())
    return True


def _is_literal(node: ast.expr, value: Any) -> bool:
    try:
        expected = ast.literal_eval(node)
    except ValueError:  # a member of an enumeration
        return True
    return expected == value and type(expected) is type(value)

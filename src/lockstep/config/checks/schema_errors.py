"""Translates the errors that pydantic finds into Lockstep's errors, by the key as it was typed."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from lockstep.config.errors import Error, mismatch
from lockstep.config.schema.configuration import (
    CUSTOM,
    ENVIRONMENTS,
    METRICS,
    NAMED,
    fields,
    section,
)
from lockstep.config.schema.legal_keys import Groups, foreign_name_hint, meant_key, unknown_key
from lockstep.config.schema.target_sections import Target
from lockstep.config.schema.type_names import kind_of
from lockstep.system.redaction import redact
from lockstep.system.text import question
from lockstep.system.trees import KeyPath, Tree, at
from lockstep.system.types import MAX_INTEGER


def schema_errors(
    tree: Tree, validation_error: ValidationError, groups: Groups
) -> Iterator[tuple[str, Error]]:
    """Yield (key, error) of everything that pydantic found.

    A key may be repeated, once for each member of a union.
    """
    # "Too large" for one member of a union comes before "of another type" for the other members.
    for item in sorted(
        validation_error.errors(include_url=False), key=lambda item: not _is_too_large(item)
    ):
        path = [str(entry) for entry in item["loc"]]
        # The path of an error may end with the member of a union of types, which is dropped.
        is_nested = section(tree, path[:1]) is not None or path[0] in NAMED
        path = path[: _key_depth(path) if is_nested else 1]
        key = ".".join(path)
        if item["type"] == "extra_forbidden":
            yield key, unknown_key(tree, path, groups)
        elif item["type"] == "missing":
            yield key, _missing_key(tree, path, groups)
        else:
            value = at(tree, path)
            as_text = item["type"] == "string_type" and isinstance(value, int | float)
            expectation = "" if _is_too_large(item) else _expectation(tree, path)
            error = mismatch(key, redact(value, key), expectation, as_text=as_text)
            yield key, error._replace(hint=foreign_name_hint(f"{key}={value}") or error.hint)


def _key_depth(path: KeyPath) -> int:
    """Return the number of parts of `path` that are keys of the schema.

    The other parts are inside of a value.
    """
    if tuple(path[:2]) in (CUSTOM, ENVIRONMENTS, METRICS):
        return 4
    return 3 if path[0] in NAMED or section(None, path[:2]) is not None else 2


def _is_too_large(item: Mapping[str, Any]) -> bool:
    return item.get("ctx", {}).get("le") == MAX_INTEGER


def _expectation(tree: Tree, path: KeyPath) -> str:
    section_type = section(tree, path)
    if section_type is None and path[-1] in NAMED:
        return "a section of settings"
    if section_type is not None:
        content = "with _target_" if issubclass(section_type, Target) else "of settings"
        ending = " or null" if path[0] in NAMED else ""
        return f"a section {content}{ending}"
    parent = section(tree, path[:-1])
    assert parent is not None
    return kind_of(fields(parent)[path[-1]])


def _missing_key(tree: Tree, path: KeyPath, groups: Groups) -> Error:
    key = ".".join(path)
    if key in groups:
        return Error(
            "missing", key, "is missing", f"choose {key}=... from {', '.join(groups[key])}"
        )
    if path[-1] == "_target_" and path[0] in NAMED:
        line = foreign_name_hint(path[1])
        candidates = [] if line else meant_key(tree, path[:2], groups)
        return Error(
            "missing",
            f"{path[0]}.{path[1]}",
            "has no _target_",
            question(candidates, line or "add one"),
        )
    return Error("missing", key, "is missing", f"add +{key}=... ({_expectation(tree, path)})")

"""First round of the check: reports all errors of a composed configuration together, before any work starts.

It imports no target; the second round is `signatures.errors`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig
from pydantic import ValidationError

from lockstep.config.checks import metric_names
from lockstep.config.checks.rules import conflicts
from lockstep.config.composing.compose import plain_tree
from lockstep.config.errors import ConfigError, Error, mismatch, question
from lockstep.config.schema.configuration import NAMED, Config, fields, key_depth, kind_of, root, section
from lockstep.config.schema.legal_keys import Groups, hint, meant_key, unknown_key
from lockstep.config.schema.target_sections import Target
from lockstep.system.kinds import LARGEST
from lockstep.system.redaction import redact
from lockstep.system.trees import at


def check_config(cfg: DictConfig, groups: Groups | None = None) -> Config:
    """Return the typed configuration. Raises ConfigError with every error of the schema and of this machine."""
    tree, unresolved = plain_tree(cfg)
    return check_tree(tree, groups, unresolved)


def check_tree(
    tree: dict[str, Any], groups: Groups | None = None, unresolved: Mapping[str, Error | None] | None = None
) -> Config:
    """Return the typed configuration of plain values. Raises ConfigError, with one error for each key of the schema.

    Rules between keys are checked only if each key is valid.

    `unresolved` has the error by key why a value is missing; None reports nothing.
    """
    errors = dict(unresolved or {})
    tree = metric_names.resolve_auto(tree)
    try:
        config = root(tree).model_validate(tree)
    except ValidationError as error:
        for key, message in schema_errors(tree, error, groups or {}):
            errors.setdefault(key, message)
        raise ConfigError(*filter(None, errors.values())) from error
    messages = list(filter(None, errors.values()))
    if tree.get("resume") is None:  # else changes of the saved run are reported first
        messages += conflicts(config)
    if messages:
        raise ConfigError(*messages)
    return config


def schema_errors(tree: dict[str, Any], found: ValidationError, groups: Groups) -> Iterator[tuple[str, Error]]:
    """Yield (key, error) of everything pydantic found; a key may be repeated, for each member of a union."""
    # "too large" for one member of a union comes before "of another type" for the others
    for item in sorted(found.errors(include_url=False), key=lambda item: not _is_too_large(item)):
        path = [str(part) for part in item["loc"]]
        # without the members of a union of types
        path = path[: key_depth(path) if section(tree, path[:1]) is not None or path[0] in NAMED else 1]
        key = ".".join(path)
        if item["type"] == "extra_forbidden":
            yield key, unknown_key(tree, path, groups)
        elif item["type"] == "missing":
            yield key, _missing_key(tree, path, groups)
        else:
            value = at(tree, path)
            as_text = item["type"] == "string_type" and isinstance(value, int | float)
            expected = "" if _is_too_large(item) else _expectation(tree, path)
            error = mismatch(key, redact(value, key), expected, as_text=as_text)
            yield key, error._replace(fix=hint(f"{key}={value}") or error.fix)


def _is_too_large(item: Mapping[str, Any]) -> bool:
    return item.get("ctx", {}).get("le") == LARGEST


def _expectation(tree: dict[str, Any], path: Sequence[str]) -> str:
    section_type = section(tree, path)
    if section_type is not None or path[-1] in NAMED:
        with_target = " with _target_" if section_type is not None and issubclass(section_type, Target) else ""
        return f"a section of keys{with_target}" + (" or null" if path[0] in NAMED and section_type is not None else "")
    parent = section(tree, path[:-1])
    assert parent is not None
    return kind_of(fields(parent)[path[-1]])


def _missing_key(tree: dict[str, Any], path: Sequence[str], groups: Groups) -> Error:
    key = ".".join(path)
    if key in groups:
        return Error(key, "is missing", f"choose {key}=... from {', '.join(groups[key])}")
    if path[-1] == "_target_" and path[0] in NAMED:
        line = hint(path[1])
        meant = [] if line else meant_key(tree, path[:2], groups)
        return Error(f"{path[0]}.{path[1]}", "has no _target_", question(meant, line or "add one"))
    return Error(key, "is missing", f"add +{key}=... ({_expectation(tree, path)})")

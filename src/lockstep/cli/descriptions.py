"""Describes the type, range and meaning of settings, for `--help` and docs/configuration.md.

The module does not import torch. Sections have the descriptions in their fields. The parameters of
Lockstep's own callables have them in their signatures, which need torch. conf/lockstep.schema.json
is written from these signatures and has their descriptions.
"""

import json
from functools import cache
from typing import Any

from lockstep.config.composing.compose import SCHEMA
from lockstep.config.schema.configuration import fields, section
from lockstep.config.schema.type_names import kind_of
from lockstep.system.trees import at


def describe(tree: dict[str, Any], path: list[str]) -> tuple[str, str]:
    """Return type and range, and the meaning, of the key at `path`.

    Both are empty for a parameter of another library.
    """
    *parents, key = path
    section_type = section(tree, parents)
    field = fields(section_type).get(key) if section_type is not None else None
    if field is not None:
        return kind_of(field), field.description or ""
    rule = _rules().get(str(at(tree, [*parents, "_target_"])), {"properties": {}})
    parameter = rule["properties"].get(key, {})
    return parameter.get("title", ""), parameter.get("description", "")


def purpose(tree: dict[str, Any], section_name: str) -> str:
    """Describe a top-level section of a configuration in one line."""
    rule = _rules().get(str(at(tree, [section_name, "_target_"])))
    if rule is not None:
        return rule["description"]
    section_type = section(tree, [section_name])
    return (section_type.__doc__ or "") if section_type is not None else ""


@cache
def _rules() -> dict[str, Any]:
    """Return the schema of the parameters of each callable of Lockstep in conf/, by its target."""
    schema = json.loads(SCHEMA.read_text("utf-8"))
    rules = [
        rule for definition in schema["$defs"].values() for rule in definition.get("allOf", ())
    ]
    return {rule["if"]["properties"]["_target_"]["const"]: rule["then"] for rule in rules}

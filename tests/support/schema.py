"""A JSON Schema of the files in conf/, for editors and `--help`.

It comes from the sections and the signatures of targets.

`python -m tests.support.schema > conf/lockstep.schema.json` writes it, and a test fails when it is
not current. Its top describes config.yaml and files with `# @package _global_`, and `#/$defs/GROUP`
the files of a group.
"""

import inspect
import json
from typing import Any

from pydantic import ConfigDict, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import Doc, override

from lockstep.cli.schema import defaults
from lockstep.config.checks import signatures
from lockstep.config.composing.compose import CONF, DEFAULT
from lockstep.config.schema.configuration import CALLED, BenchmarkConfig
from lockstep.config.schema.target_sections import is_ours, targets
from lockstep.config.schema.type_names import kind_of
from lockstep.system.trees import from_yaml

Schema = dict[str, Any]
Targets = dict[str, set[str]]  # the keys in conf/ of each callable
# a file has some of the keys, and conf/ has the defaults
LEFT_OUT = ("default", "required", "title")
# or ???: a command has to give the value
INTERPOLATION: Schema = {"type": "string", "pattern": r"^\?\?\?$|\$\{.+\}"}
HYDRA: Schema = {"hydra": {"description": "settings of Hydra", "type": "object"}}
DEFAULTS: Schema = {"defaults": {"$ref": "#/$defs/defaults"}}
CALL: Schema = {"type": "object", "required": ["_target_"]}  # whose result is the value


class _Generator(GenerateJsonSchema):
    """Allows any value for the types of other libraries."""

    @override
    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Schema:
        return {}


def json_schema() -> Schema:
    """The schema; it suggests the options of Lockstep, and also accepts others."""
    whole = _loosen(BenchmarkConfig.model_json_schema(schema_generator=_Generator))
    sections = {name: _loosen(section) for name, section in whole.pop("$defs").items()}
    ours = _our_targets()
    parts: Schema = {}
    for name, value in whole["properties"].items():
        choice = value["anyOf"][0]
        section = sections[choice["$ref"].rpartition("/")[2]] if "$ref" in choice else choice
        if section.get("type") == "object":
            section = {**section, "properties": {**DEFAULTS, **section.get("properties", {})}}
            parts[name] = _with_parameters(section, ours.get(name, {}), is_complete=True)
            value["anyOf"][0] = {"$ref": f"#/$defs/{name}"}
    sections["Open"] = _with_parameters(sections["Open"], ours["Open"], is_complete=False)
    text = json.dumps([whole, parts, sections])
    used = {name: section for name, section in sections.items() if f'"#/$defs/{name}"' in text}
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        **whole,
        "description": "Settings of a run, or some of them",
        "properties": {**DEFAULTS, **HYDRA, **whole["properties"]},
        "$defs": {"interpolation": INTERPOLATION, "defaults": defaults(DEFAULT), **parts, **used},
    }


def _loosen(schema: Schema) -> Schema:
    """A schema that requires no key, and accepts an interpolation for any value."""
    loose = {key: value for key, value in schema.items() if key not in LEFT_OUT}
    for key in {"properties", "patternProperties"} & loose.keys():
        loose[key] = {name: _value(value) for name, value in loose[key].items()}
    for key in {"additionalProperties", "items"} & loose.keys():
        loose[key] = _value(loose[key]) if isinstance(loose[key], dict) else loose[key]
    if "anyOf" in loose:
        loose["anyOf"] = [_loosen(choice) for choice in loose["anyOf"]]
    if "patternProperties" in loose:
        loose["additionalProperties"] = False
    return loose


def _value(schema: Schema) -> Schema:
    return _or(_loosen(schema), {"$ref": "#/$defs/interpolation"})


def _or(schema: Schema, other: Schema) -> Schema:
    """A schema that also accepts `other`, with title and description outside."""
    texts = {key: schema[key] for key in ("title", "description") if key in schema}
    choice = {key: value for key, value in schema.items() if key not in texts}
    return {**texts, "anyOf": [*choice.get("anyOf", [choice]), other]}


def _our_targets() -> dict[str, Targets]:
    """Return the callables of Lockstep in its conf/ by group.

    `Open` has those of callbacks, loggers and metrics.
    """
    found: dict[str, Targets] = {}
    for path in sorted(CONF.rglob("*.yaml")):
        group = path.parent.name
        for above, value in targets(from_yaml(path.read_text("utf-8"))):
            if is_ours(value["_target_"]):
                name = group if group in CALLED and not above else "Open"
                found.setdefault(name, {}).setdefault(value["_target_"], set()).update(value)
    return found


def _with_parameters(section: Schema, ours: Targets, *, is_complete: bool) -> Schema:
    """Add parameters of callables to a section.

    They are rules for sections that name the callable, and suggestions for others.

    `is_complete`: conf/ has every parameter of these callables.
    """
    own, rules = section["properties"], []
    suggestions: Schema = {}
    for target, keys in sorted(ours.items()):
        types = _parameters(target, keys - own.keys())
        checked = {name: _or(schema, CALL) for name, schema in types.items()}
        text = (inspect.getdoc(signatures.load(target)) or "").partition("\n")[0]
        then: Schema = {"description": text, "properties": checked}
        if is_complete:
            suggestions = {**types, **suggestions}
            others = {name: {} for name in (*own, *sorted(keys - own.keys() - types.keys()))}
            then |= {
                "properties": {**others, **checked},
                "patternProperties": {"^_": {}},
                "additionalProperties": False,
            }
        rules.append(
            {
                "if": {"properties": {"_target_": {"const": target}}, "required": ["_target_"]},
                "then": then,
            }
        )
    if not rules:
        return section
    suggested = {name: _or(schema, {}) for name, schema in suggestions.items()}
    named = {"_target_": _or(own["_target_"], {"enum": sorted(ours)})}
    return {**section, "properties": {**suggested, **own, **named}, "allOf": rules}


def _parameters(target: str, keys: set[str]) -> Schema:
    """Return the schemas of those parameters of a callable that are among `keys`.

    Their titles are their types.
    """
    signature = signatures.find(target)
    assert signature is not None
    fields: Any = {}
    for name, annotation in signature.types.items():
        if name in keys:
            field = FieldInfo.from_annotation(annotation)
            docs = (item.documentation for item in field.metadata if isinstance(item, Doc))
            field.description = next(docs, None)
            fields[name] = (field.annotation, field)
    model = create_model(target, __config__=ConfigDict(arbitrary_types_allowed=True), **fields)
    types = _loosen(model.model_json_schema(schema_generator=_Generator)).get("properties", {})
    return {name: {"title": kind_of(fields[name][1]), **schema} for name, schema in types.items()}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=1))

"""`lockstep schema`: prints a JSON Schema of the files in conf/, for editors."""

import json
from pathlib import Path
from typing import Any

from lockstep.config.composing.compose import SCHEMA, Source, groups, source_of


def show_schema(project: Path) -> int:
    print(json.dumps(json_schema(source_of(project)), indent=1))
    return 0


def json_schema(source: Source) -> dict[str, Any]:
    """Return the schema of the files in conf/.

    It suggests the options in the folders of `source`, and also accepts others.
    """
    schema = json.loads(SCHEMA.read_text("utf-8"))
    schema["$defs"]["defaults"] = defaults(source)
    return schema


def defaults(source: Source) -> dict[str, Any]:
    """Return the schema of a defaults list."""
    option_schema = {"type": ["string", "array", "null"]}
    choices = {
        f"override /{group}": {"anyOf": [{"enum": option_names}, option_schema]}
        for group, option_names in groups(*source.folders).items()
    }
    return {
        "description": "options and files to start from",
        "type": "array",
        "items": {
            "anyOf": [
                {"type": "string"},
                {"type": "object", "properties": choices, "additionalProperties": option_schema},
            ]
        },
    }

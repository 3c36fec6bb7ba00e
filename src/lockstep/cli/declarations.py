"""Parameters of Lockstep's own callables, read from their source, so that `--help` does not import torch."""

import ast
import builtins
import re
import typing
from pathlib import Path
from typing import Any

import annotated_types
import typing_extensions
from pydantic.fields import FieldInfo

import lockstep
from lockstep.config.schema.configuration import fields, section
from lockstep.config.schema.target_sections import is_ours
from lockstep.system import kinds
from lockstep.system.trees import at


class _Names(dict[str, Any]):
    """Names in an annotation; unknown ones, such as classes of torch, become an empty class."""

    def __missing__(self, name: str) -> Any:
        return type(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)})


MODULES = (builtins, typing, typing_extensions, annotated_types, kinds)
NAMES = _Names({name: value for module in MODULES for name, value in vars(module).items()})


def meaning(tree: dict[str, Any], path: list[str]) -> FieldInfo | None:
    """Return type, range and description of the key at `path` of a configuration, None for one of another library."""
    *above, name = path
    section_type = section(tree, above)
    field = fields(section_type).get(name) if section_type is not None else None
    return parameters(at(tree, [*above, "_target_"])).get(name) if field is None else field


def parameters(target: object) -> dict[str, FieldInfo]:
    """Return type, range and description of the keywords of a callable of Lockstep; none for one of another library."""
    found = {name: FieldInfo.from_annotation(annotation) for name, annotation in _declaration(target)[1].items()}
    for field in found.values():
        docs = (part.documentation for part in field.metadata if isinstance(part, typing_extensions.Doc))
        field.description = next(docs, None)
    return found


def purpose(tree: dict[str, Any], name: str) -> str:
    """Describe a section at the top of a configuration in one line."""
    section_type = section(tree, [name])
    return _declaration(at(tree, [name, "_target_"]))[0] or (section_type.__doc__ or "" if section_type else "")


def _declaration(target: object) -> tuple[str, dict[str, Any]]:
    """Return the first line of the docstring of a callable of Lockstep, and the annotations of its keywords."""
    if not is_ours(target):
        return "", {}
    *folders, name = str(target).split(".")[1:]
    pattern = re.compile(rf"^(def|class) {name}\b", re.MULTILINE)
    for path in Path(lockstep.__file__).parent.joinpath(*folders).rglob("*.py"):
        if not pattern.search(text := path.read_text()):
            continue
        (node,) = (part for part in ast.parse(text).body if getattr(part, "name", "") == name)
        assert isinstance(node, ast.FunctionDef | ast.ClassDef)
        called = node
        if isinstance(node, ast.ClassDef):
            called = next((part for part in node.body if getattr(part, "name", "") == "__init__"), None)
        keywords = called.args.kwonlyargs if isinstance(called, ast.FunctionDef) else []
        return (ast.get_docstring(node) or "").partition("\n")[0], {
            keyword.arg: eval(compile(ast.Expression(keyword.annotation), path, "eval"), {}, NAMES)
            for keyword in keywords
            if keyword.annotation is not None
        }
    return "", {}

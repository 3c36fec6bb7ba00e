"""The keys that a tree may have, and what an unknown one may have been meant for. Imports nothing that it names."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep.config.errors import near, question
from lockstep.config.foreign_names import hint
from lockstep.config.schema import CALLED, NAMED, fields, root, section
from lockstep.config.target_sections import is_ours
from lockstep.system.trees import at, leaves

Groups = Mapping[str, Sequence[str]]  # the options of every configuration group, for the hints


def unknown_key(tree: dict[str, Any], path: Sequence[str], groups: Groups, names: Sequence[str] | None = None) -> str:
    """Describe an unknown key: what to write for the name of another framework, else near names, else all names.

    `names` are those that may stand in its place, where the schema does not say so.
    """
    key = ".".join(path)
    parent = at(tree, path[:-1])
    target = parent.get("_target_") if isinstance(parent, dict) else None
    is_entry = path[0] in NAMED and isinstance(target, str)  # a custom one, with its own names
    sections = [name for depth, name in enumerate(path[:-1], 1) if at(tree, path[:depth]) is None]
    if not is_entry and (line := hint(path[-1], *sections)):
        return f"unknown key {key}: {line}"
    owner = target.rpartition(".")[2] if isinstance(target, str) else ".".join(path[:-1])
    names = legal_names(tree, path[:-1], groups) if names is None else names
    legal = [name for name in names or () if not name.startswith("_")]
    known = f"{owner} has {', '.join(legal)}" if owner and legal else "remove it; --help lists the keys"
    return f"unknown key {key}" + question(meant_key(tree, path, groups, names), known)


def legal_names(tree: dict[str, Any], path: Sequence[str], groups: Groups) -> Sequence[str] | None:
    """The names of keys that may stand below `path`; None where only what is called there can tell."""
    if not path:
        root_fields = fields(root(tree))
        return [*root_fields, *(group for group in groups if group not in root_fields and "/" not in group)]
    value = at(tree, path)
    if len(path) == 1 and path[0] in NAMED:
        entries = value if isinstance(value, dict) else {}
        needed = next(name for name, field in fields(NAMED[path[0]]).items() if field.is_required())
        return [name for name, child in entries.items() if child is None or at(child, [needed]) is not None]
    section_type = section(tree, path)
    if section_type is None:
        return None if isinstance(value, dict) else []
    if section_type.model_config.get("extra") != "allow":
        return list(fields(section_type))
    has_all = path[0] in CALLED and is_ours(at(value, ["_target_"]))  # in conf/
    return list(dict.fromkeys([*fields(section_type), *value])) if has_all else None


def meant_key(
    tree: dict[str, Any], path: Sequence[str], groups: Groups, names: Sequence[str] | None = None
) -> list[str]:
    """The keys that are likely meant by an unknown one: a like name in its section, else the same name elsewhere.

    `names` are those that may stand in its place; of what is called, those that are set are like it, too.
    """
    for depth, name in enumerate(path):
        is_last = depth == len(path) - 1
        legal = names if is_last and names is not None else legal_names(tree, path[:depth], groups)
        known = legal if legal is not None else list(at(tree, path[:depth]) or ())
        if is_last or name not in known:
            meant = [other for other in near(name, known, 2) if other != name]
            if meant:
                return [".".join([*path[:depth], other, *path[depth + 1 :]]) for other in meant]
            if legal is None:
                return []
            break
    keys = {
        key: key.rpartition(".")[2] for key, _ in leaves(tree, "") if "." in key and key.partition(".")[0] not in NAMED
    }
    same = near(path[-1], set(keys.values()), cutoff=0.75)
    return [key for key, name in keys.items() if name in same and key != ".".join(path)][:2]


def targets(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every section with a `_target_`, nested ones too."""
    if isinstance(value, dict):
        if isinstance(value.get("_target_"), str):
            yield path, value
        for key, child in value.items():
            yield from targets(child, (*path, key))
    elif isinstance(value, list):
        for i, child in enumerate(value):
            yield from targets(child, (*path, str(i)))


def called(tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, dotted name) of all that a configuration calls: every `_target_`, and the `_check_` of the data."""
    for path, value in targets(tree):
        for name in ("_target_", "_check_"):
            if isinstance(value.get(name), str):
                yield ".".join([*path, name]), value[name]


def public_names(module: str) -> Sequence[str]:
    """The names that a package of Lockstep offers, none where there is no such package."""
    try:
        return getattr(importlib.import_module(module), "__all__", ())
    except ImportError:
        return ()

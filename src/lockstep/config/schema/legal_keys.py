"""Legal keys of a configuration, near names for unknown ones, and its targets. Imports no target."""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.config.errors import Error, near_names, question
from lockstep.config.schema.configuration import CALLED, NAMED, fields, root, section
from lockstep.config.schema.target_sections import is_ours
from lockstep.system.trees import at, leaves

Groups = Mapping[str, Sequence[str]]  # the options of every configuration group, for hints


def unknown_key(tree: dict[str, Any], path: Sequence[str], groups: Groups, names: Sequence[str] | None = None) -> Error:
    """Describe an unknown key, with the setting for a name of another framework, else near names, else all names.

    `names` are the legal ones, if the schema does not have them.
    """
    from lockstep.config.schema.foreign_names import hint

    key = ".".join(path)
    parent = at(tree, path[:-1])
    target = parent.get("_target_") if isinstance(parent, dict) else None
    is_entry = path[0] in NAMED and isinstance(target, str)  # whose parameters may have any name
    sections = [name for depth, name in enumerate(path[:-1], 1) if at(tree, path[:depth]) is None]
    if not is_entry and (line := hint(path[-1], *sections)):
        return Error(key, "is not a key", line)
    owner = target.rpartition(".")[2] if isinstance(target, str) else ".".join(path[:-1])
    names = legal_names(tree, path[:-1], groups) if names is None else names
    legal = [name for name in names or () if not name.startswith("_")]
    known = f"{owner} has {', '.join(legal)}" if owner and legal else "remove it; --help lists the keys"
    return Error(key, "is not a key", question(meant_key(tree, path, groups, names), known))


def legal_names(tree: dict[str, Any], path: Sequence[str], groups: Groups) -> Sequence[str] | None:
    """Return the legal keys below `path`; None if they are the parameters of a target."""
    if not path:
        root_fields = fields(root(tree))
        return [*root_fields, *(group for group in groups if group not in root_fields and "/" not in group)]
    value = at(tree, path)
    if len(path) == 1 and path[0] in NAMED:
        return list(value) if isinstance(value, dict) else []
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
    """Return the keys that an unknown one may mean: near names in its section, else near keys of others."""
    *parents, last = path
    if names is None:
        legal = legal_names(tree, parents, groups)
        names = legal if legal is not None else list(at(tree, parents) or ())
    if meant := near_names(last, [name for name in names if name != last], 2):
        return [".".join([*parents, name]) for name in meant]
    if at(tree, parents[:1]) is not None and path[0] in NAMED:
        return []
    whole = ".".join(path)
    keys = {key: key.rpartition(".")[2] for key, _ in leaves(tree, "") if "." in key and key != whole}
    same = near_names(last, {name for key, name in keys.items() if key.partition(".")[0] not in NAMED}, cutoff=0.75)
    elsewhere = [key for key, name in keys.items() if name in same][:2]
    return elsewhere if at(tree, parents) is not None else near_names(whole, keys, cutoff=0.85) or elsewhere

"""Sections with a `_target_`: which keys it takes, and whether they fit."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import lockstep
from lockstep.config import annotations, signatures
from lockstep.config.data_sections import OpenData
from lockstep.config.faults import near, question, shown
from lockstep.config.foreign_names import hint
from lockstep.config.known_targets import KNOWN
from lockstep.config.schema import METRICS, NAMED, fields, root, section
from lockstep.system.trees import at, leaves

# what the training gives to the target of a section: the first parameter by position, others by keyword
BY_POSITION = ("optimizer", "scheduler")
BY_KEYWORD = {"model": ("in_channels", "num_classes"), "logger": ("save_dir",)}
TOTAL_STEPS = "total_steps"  # for schedules that ask for it
# what a LightningModule of the user's own gets where it asks for it
OF_MODULES = ("net", "optimizer", "image_shape", "num_classes", TOTAL_STEPS)
# what metrics are told of the task, as torchmetrics calls it
OF_METRICS = ("task", "num_classes", "num_labels")
Groups = Mapping[str, Sequence[str]]  # the options of every configuration group, for the cures


def unknown_key(tree: dict[str, Any], path: Sequence[str], groups: Groups) -> str:
    """Describe an unknown key: what to write for the name of another framework, else near names, else all names."""
    key = ".".join(path)
    parent = at(tree, path[:-1])
    target = parent.get("_target_") if isinstance(parent, dict) else None
    is_entry = path[0] in NAMED and isinstance(target, str)  # a custom one, with its own names
    sections = [name for depth, name in enumerate(path[:-1], 1) if at(tree, path[:depth]) is None]
    if not is_entry and (line := hint(path[-1], *sections)):
        return f"unknown key {key}: {line}"
    owner = target.rpartition(".")[2] if isinstance(target, str) else ".".join(path[:-1])
    names = [name for name in legal_names(tree, path[:-1], groups) or () if not name.startswith("_")]
    known = f"{owner} has {', '.join(names)}" if owner and names else "remove it; --help lists the keys"
    return f"unknown key {key}" + question(meant_key(tree, path, groups), known)


def legal_names(tree: dict[str, Any], path: Sequence[str], groups: Groups) -> Sequence[str] | None:
    """The names of keys that may stand below `path`; None where any may."""
    if not path:
        root_fields = fields(root(tree))
        return [*root_fields, *(group for group in groups if group not in root_fields and "/" not in group)]
    value = at(tree, path)
    if len(path) == 1 and path[0] in NAMED:
        entries = value if isinstance(value, dict) else {}
        needed = next(name for name, field in fields(NAMED[path[0]]).items() if field.is_required())
        return [name for name, child in entries.items() if child is None or at(child, [needed]) is not None]
    section_type = section(tree, path)
    if section_type is not None and section_type.model_config.get("extra") != "allow":
        return list(fields(section_type))
    target = value.get("_target_") if isinstance(value, dict) else None
    if not isinstance(target, str):
        if isinstance(value, dict) and section_type is None:
            return None
        return list(fields(section_type)) if section_type else []
    try:
        signature = signatures.find(target)
    except signatures.Missing:
        return None
    if signature is None or signature.takes_any:
        return None
    supplied = _supplied(path, target, signature)
    names = [
        *(fields(section_type) if section_type else ()),
        *(name for name in signature.names if name not in supplied),
    ]
    return list(dict.fromkeys(names))


def meant_key(tree: dict[str, Any], path: Sequence[str], groups: Groups) -> list[str]:
    """The keys that are likely meant by an unknown one: a like name in its section, else the same name elsewhere."""
    for depth, name in enumerate(path):
        names = legal_names(tree, path[:depth], groups)
        if names is None:
            return []
        if name not in names or depth == len(path) - 1:
            meant = [other for other in near(name, names, 2) if other != name]
            if meant:
                return [".".join([*path[:depth], other, *path[depth + 1 :]]) for other in meant]
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


def _filled_in(path: Sequence[str]) -> Sequence[str]:
    """The parameters that the training gives to the target at `path` where the configuration does not."""
    return OF_METRICS if tuple(path[:2]) == METRICS and len(path) == 3 else ()


def _supplied(path: Sequence[str], target: str, signature: signatures.Signature) -> tuple[str, ...]:
    """The parameters that the training alone gives to the target at `path`."""
    if len(path) != (2 if path[0] in NAMED else 1):
        return ()
    if path[0] == "module":
        return tuple(name for name in OF_MODULES if name in signature.names)
    if path[0] == "scheduler":
        mode = ("mode",) if target.endswith(".ReduceLROnPlateau") else ()  # as the best weights are chosen
        return (*signature.names[:1], *({TOTAL_STEPS} & {*signature.names}), *mode)
    return (*(signature.names[:1] if path[0] in BY_POSITION else ()), *BY_KEYWORD.get(path[0], ()))


def _closure_faults(target: str) -> Iterator[tuple[str, str]]:
    """A fault of an optimizer that wants to compute the loss of a step again, by a function it is given."""
    try:
        signature = signatures.find(f"{target}.step")
    except signatures.Missing:  # of a function that returns an optimizer
        return
    if signature is not None and signature.required:
        yield (
            "optimizer._target_",
            f"optimizer._target_={target} computes the loss several times a step, which the training does not: choose "
            "one whose step() needs no closure, such as torch.optim.AdamW",
        )


def target_faults(tree: dict[str, Any], groups: Groups) -> Iterator[tuple[str, str]]:
    """(key, fault) of every parameter that is unknown to its target, of another type, missing, or not to be set."""
    for path, value in targets(tree):
        section_type = section(tree, path)
        if section_type is not None and section_type.model_config.get("extra") != "allow":
            continue  # the schema has said it all
        key, target = ".".join(path), value["_target_"]
        name = target.rpartition(".")[2]
        try:
            signature = signatures.find(target)
        except signatures.Missing as error:
            yield f"{key}._target_", f"{key}._target_={target}: {error}" + _cure(target, error)
            continue
        if signature is None:
            continue
        supplied = _supplied(path, target, signature)
        if path == ("optimizer",) and target not in KNOWN:
            yield from _closure_faults(target)
        section_fields = fields(section_type) if section_type is not None else {}
        given = [k for k in value if not k.startswith("_") and k not in section_fields]
        for k in given:
            if k in supplied:
                yield f"{key}.{k}", f"{key}.{k} is set by the training itself: remove it"
            elif k not in signature.names and not signature.takes_any:
                yield f"{key}.{k}", unknown_key(tree, [*path, k], groups)
            elif k in signature.types and not annotations.fits(signature.types[k], value[k]):
                yield f"{key}.{k}", f"{key}.{k}={shown(value[k])} must be {signature.types[k]}, as {name} has it"
        is_completed = path[0] in BY_POSITION and len(path) == 1  # by the training
        if (is_completed or not value.get("_partial_")) and "_args_" not in value:
            for k in signature.required:
                if k not in value and k not in supplied and k not in _filled_in(path):
                    yield f"{key}.{k}", f"{key}.{k} is missing: {name} needs it, add +{key}.{k}=..."
        refused = [k for k in supplied if k not in signature.names and not signature.takes_any]
        if refused:
            yield f"{key}._target_", f"{key}._target_={target} does not take {' and '.join(refused)} from the training"


def check_faults(tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, fault) of a `_check_` that is not there, or cannot be given the parameters of its source."""
    value, source = tree.get("data"), section(tree, ["data"])
    check = at(value, ["_check_"])
    if source is not OpenData or not isinstance(value, dict) or not isinstance(check, str) or "." not in check:
        return  # the schema has said it all
    key, setting = "data._check_", f"data._check_={check}"
    try:
        signature = signatures.find(check)
    except signatures.Missing as error:
        yield key, f"{setting}: {error}" + _cure(check, error)
        return
    if signature is None:
        return
    given = [k for k in value if not k.startswith("_") and k not in fields(source)]
    for k in given:
        if k not in signature.names and not signature.takes_any:
            reason = "data._check_ gets the parameters of data._target_, add it there"
            yield f"{key}.{k}", f"data.{k} is no parameter of {check}: {reason}"
    for k in signature.required:
        if k not in given:
            yield f"{key}.{k}", f"{setting} needs {k}, which is not set: add +data.{k}=..., or give it a default"


def _cure(target: str, error: signatures.Missing) -> str:
    meant = [
        ".".join(like if part == error.name else part for part in target.split("."))
        for like in near(error.name, error.known)
    ]
    if not target.startswith("lockstep."):
        return question(meant, "correct the name, or install the package that has it")
    names = [name for name in public_names(target.rpartition(".")[0]) if name != error.name]
    return question(meant, f"Lockstep {lockstep.__version__} has " + (f"{', '.join(names)} there" if names else "none"))


def public_names(module: str) -> Sequence[str]:
    """The names that a package of Lockstep offers, none where there is no such package."""
    try:
        return getattr(importlib.import_module(module), "__all__", ())
    except ImportError:
        return ()

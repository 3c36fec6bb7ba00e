"""Second round of the check: imports the targets of a configuration and checks their parameters.

It runs in a process that has imported torch (`call` of system/processes.py). The first round is in
validation.py.
"""

import importlib
import importlib.util
import inspect
import json
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from lockstep.config.errors import Error, Errors, mismatch, one_line
from lockstep.config.schema.configuration import CUSTOM, METRICS, NAMED, fields, section
from lockstep.config.schema.target_sections import CLASSIFIER, LIBRARIES, Target, targets
from lockstep.system.text import near_names, question
from lockstep.system.trees import KeyPath, Tree, at
from lockstep.system.types import MAX_INTEGER

# The training supplies these parameters by keyword.
BY_KEYWORD = {"model": ("in_channels", "num_classes"), "logger": ("save_dir",)}
TOTAL_STEPS = "total_steps"  # Schedules with this parameter receive it.
# Custom modules with these parameters receive them.
OF_MODULES = ("net", "optimizer", "image_shape", "num_classes", TOTAL_STEPS)
# The task supplies these parameters, whose names are those of torchmetrics.
OF_METRICS = ("task", "num_classes", "num_labels")


@dataclass(frozen=True)
class Signature:
    """Keyword parameters of a callable.

    `required` are those without a default. `takes_any` says whether the callable takes any other
    keyword. `types` has the types of the annotated parameters.
    """

    names: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool
    types: dict[str, Any]


class Missing(LookupError):
    """The package, module or `name` does not exist; `existing_names` are those that do."""

    def __init__(self, message: str, name: str, existing_names: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.name, self.existing_names = name, tuple(existing_names)


def is_there(package: str) -> bool:
    """Return whether Python finds a package or module of this name, which has no dots."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # A module may have no spec, such as __main__.
        return True


def load(target: str) -> Any:
    """Import the object of a dotted name.

    Raises Missing, and any error of its module during the import.
    """
    package, *attributes = target.split(".")
    if not is_there(package):
        raise Missing(f"package {package!r} was not found", package)
    value: Any = importlib.import_module(package)
    for attribute in attributes:
        path = f"{package}.{attribute}"
        may_be_module = not hasattr(value, attribute) and hasattr(value, "__path__")
        if may_be_module and importlib.util.find_spec(path) is not None:
            importlib.import_module(path)
        if not hasattr(value, attribute):
            existing_names = [*dir(value), *getattr(value, "__all__", ())]
            raise Missing(f"{package!r} has no {attribute!r}", attribute, existing_names)
        value, package = getattr(value, attribute), path
    return value


def find(target: str) -> Signature | None:
    """Return the signature of a dotted name, or None for compiled code without one.

    Raises what `load` raises, and Missing for an object that is not callable.
    """
    callee = load(target)
    if not callable(callee):
        raise Missing(f"{target!r} is a {type(callee).__name__}, not something to call", target)
    try:
        parameters = inspect.signature(callee).parameters.values()
    except ValueError:
        return None
    function = callee.__init__ if inspect.isclass(callee) else callee
    try:
        types = get_type_hints(function, include_extras=True)
    except (AttributeError, NameError, TypeError):
        # Some names exist only for type checkers.
        types = {}
    keywords = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Signature(
        names=tuple(p.name for p in keywords),
        required=tuple(p.name for p in keywords if p.default is p.empty),
        takes_any=any(p.kind == p.VAR_KEYWORD for p in parameters),
        types={
            p.name: _allow_default(types[p.name], p.default) for p in keywords if p.name in types
        },
    )


def parameter_names(target: str) -> tuple[str, ...]:
    """Return the keyword parameters of a callable by its dotted name, none for compiled code."""
    signature = find(target)
    return () if signature is None else signature.names


def _allow_default(annotation: Any, default: Any) -> Any:
    """Add the default to the annotation of a parameter, so that `size: int = None` accepts None."""
    if default is not None or fits(annotation, None):
        return annotation
    try:
        return annotation | None
    except TypeError:  # The annotation is not a type.
        return Any


def fits(annotation: Any, value: Any) -> bool:
    """Return whether a value of YAML suits a parameter with this annotation.

    The result of a target suits every annotation.
    """
    if any(targets(value)):
        return True
    try:
        adapter = TypeAdapter(
            annotation, config=ConfigDict(arbitrary_types_allowed=True, strict=True)
        )
        adapter.validate_json(json.dumps(value))
    except ValidationError:
        return False
    except Exception:
        # Pydantic has no schema for the annotation, so the call itself checks the value.
        return True
    return True


def errors(trees: Sequence[Tree]) -> list[Error]:
    """Return the errors of all targets of some configurations, one for each key."""
    all_errors: list[Error] = []
    for tree in trees:
        tree_errors: dict[str, Error] = {}
        for error in (*_target_errors(tree), *_network_errors(tree)):
            tree_errors.setdefault(error.key.partition("=")[0], error)
        all_errors += tree_errors.values()
    return all_errors


def _target_errors(tree: Tree) -> Errors:
    for path, value in targets(tree):
        signature = yield from _find_signature(f"{'.'.join(path)}._target_", value["_target_"])
        if signature is None:
            continue
        errors = list(_parameter_errors(tree, path, value, signature))
        if path == ("optimizer",) and not errors:
            errors += _optimizer_errors(value)
        yield from errors


def _parameter_errors(
    tree: Tree, path: tuple[str, ...], value: Tree, signature: Signature
) -> Errors:
    """Yield an error for every parameter that the target or the training does not allow.

    Such a parameter is unknown, of another type, missing, or set by the training.
    """
    key, target, section_type = ".".join(path), value["_target_"], section(tree, path)
    target_name = target.rpartition(".")[2]
    training_parameters = _training_parameters(path, target, signature)
    field_names: list[str] = []
    if section_type is not None and issubclass(section_type, Target):
        field_names = [k for k in fields(section_type) if k not in section_type.passed]
    for k, item in value.items():
        if k.startswith("_") or k in field_names:
            continue
        if k in training_parameters:
            yield Error("conflict", f"{key}.{k}", "is set by the training itself", "remove it")
        elif k not in signature.names and not signature.takes_any:
            from lockstep.config.schema.legal_keys import unknown_key

            names = dict.fromkeys([*signature.names, *field_names])
            free_names = [name for name in names if name not in training_parameters]
            yield unknown_key(tree, [*path, k], {}, names=free_names)
        elif k in signature.types and not fits(annotation := signature.types[k], item):
            is_number = isinstance(item, int | float)
            as_text = is_number and fits(annotation, "0") and not fits(annotation, True)
            is_too_large = is_number and item > MAX_INTEGER and fits(annotation, MAX_INTEGER)
            from lockstep.config.schema.type_names import kind

            expectation = "" if is_too_large else f"{kind(annotation)}, as {target_name} has it"
            yield mismatch(f"{key}.{k}", item, expectation, as_text=as_text)
    # The training calls these partial targets, so they need all parameters that it does not supply.
    is_completed = path in (("optimizer",), ("scheduler",)) or not value.get("_partial_")
    present_keys = {*value, *training_parameters}
    if path[:2] == METRICS and len(path) == 3:
        present_keys.update(OF_METRICS)
    for k in signature.required if is_completed and "_args_" not in value else ():
        if k not in present_keys:
            hint = f"{target_name} needs it, add +{key}.{k}=..."
            if path[:2] == CUSTOM:
                hint += f", or +{key}._partial_=true if it is the image"
            yield Error("missing", f"{key}.{k}", "is missing", hint)
    refused_parameters = [k for k in training_parameters if k not in signature.names]
    if refused_parameters and not signature.takes_any:
        yield Error(
            "unsupported",
            f"{key}._target_={target}",
            f"does not take {' and '.join(refused_parameters)} from the training",
        )
    if TOTAL_STEPS in training_parameters and value.get("_interval_") == "epoch":
        yield Error(
            "conflict",
            f"{key}._interval_=epoch",
            f"is for schedules by epoch, and {target_name} counts optimizer steps, {TOTAL_STEPS}",
            "remove it",
        )


def _find_signature(key: str, target: str) -> Generator[Error, None, Signature | None]:
    """Return the signature of a target, or None if there is none.

    Yields the error of a target that cannot be imported or called.
    """
    try:
        return find(target)
    except Missing as error:
        if target.startswith("__main__."):  # Each worker has another `__main__`.
            hint = f"put it into a file next to the notebook, net.py, and write net{target[8:]}"
        else:
            path = target.split(".")
            similar_names = near_names(error.name, error.existing_names)
            candidates = [
                ".".join(name if component == error.name else component for component in path)
                for name in similar_names
            ]
            hint = question(candidates, "correct the name, or install the package")
        yield Error("unknown", f"{key}={target}", f": {error}", hint)
    except Exception as error:
        # Importing a module may raise any error.
        from lockstep.system.tracebacks import located

        message = located(f"{type(error).__name__}: {one_line(error)}", error)
        yield Error("failed", f"{key}={target}", "cannot be imported", message)
    return None


def _training_parameters(path: KeyPath, target: str, signature: Signature) -> tuple[str, ...]:
    """Return the parameters of the target at `path` that only the training may set."""
    group = path[0]
    if len(path) != (2 if group in NAMED else 1):
        return ()
    if group == "module":
        return tuple(
            parameter
            for parameter in signature.names
            if target == CLASSIFIER or parameter in OF_MODULES
        )
    if group == "data":
        return tuple({"kept"} & {*signature.names})
    if group == "scheduler":
        # The mode is the direction in which the best weights are chosen.
        mode = ("mode",) if target.endswith(".ReduceLROnPlateau") else ()
        return (*signature.names[:1], *({TOTAL_STEPS} & {*signature.names}), *mode)
    if group == "optimizer":
        return signature.names[:1]
    return BY_KEYWORD.get(group, ())


def _optimizer_errors(section: Tree) -> Errors:
    import torch

    target = section["_target_"]
    callee = load(target)
    values = {name: value for name, value in section.items() if not name.startswith("_")}
    try:
        if target.startswith("torch.optim."):
            callee([torch.zeros(1, 1, requires_grad=True)], **values)
    except (TypeError, ValueError) as error:
        yield Error("failed", f"optimizer._target_={target}", f": {one_line(error)}")
    try:
        step = inspect.signature(callee.step).parameters.values()
    except (AttributeError, ValueError):  # The target is a function that returns an optimizer.
        return
    if any(
        p.name != "self" and p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        for p in step
    ):
        yield Error(
            "unsupported",
            f"optimizer._target_={target}",
            "computes the loss several times a step",
            "choose another one",
        )


def _network_errors(tree: Tree) -> Errors:
    library = LIBRARIES.get(at(tree, ["model", "_target_"]))
    network_name = at(tree, ["model", "name"])
    if library is not None:
        network_names: Sequence[str] = importlib.import_module(library).list_models()
        if network_name.partition(".")[0] not in network_names:
            hint = question(
                near_names(network_name, network_names, 3),
                f"see its documentation for all {len(network_names)} names",
            )
            yield Error(
                "unknown",
                f"model.name={network_name}",
                f"is not a network of {library.partition('.')[0]}",
                hint,
            )

"""Names the types of settings in errors, help and docs, such as `int >= 1 or null`."""

from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from lockstep.config.schema.sections import is_section
from lockstep.system.types import MAX_INTEGER

# The values of types in these modules can be written in YAML.
PLAIN_MODULES = ("builtins", "collections.abc", "datetime", "pathlib", "typing")


def kind_of(field: FieldInfo) -> str:
    """Describe type and range, e.g. `int >= 1 or null`."""
    return kind(field.annotation, field.metadata)


def kind(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Describe an annotation, with the range in `metadata`."""
    metadata = metadata[::-1]  # The last bound counts.
    descriptions = [item for item in metadata if isinstance(item, str)]
    if descriptions:
        return descriptions[0]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        nested_metadata = [
            m
            for item in arguments[1:]
            for m in (item.metadata if isinstance(item, FieldInfo) else [item])
        ]
        return kind(arguments[0], [*nested_metadata, *metadata[::-1]])
    if origin is Literal:
        return "|".join(str(value).lower() for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join("null" if member is NoneType else kind(member) for member in arguments)
    if origin in (list, Sequence):
        return f"[{kind(arguments[0])}, ...]"
    if annotation is bool:
        return "true|false"
    if origin is dict or is_section(annotation):
        return "a section of settings"
    if origin is Callable or getattr(origin or annotation, "__module__", "") not in PLAIN_MODULES:
        return "a section with _target_"
    type_name = str(annotation)
    if origin is None:
        type_name = getattr(annotation, "__name__", type_name)
    low = next((f"{item.ge} <= " for item in metadata if isinstance(item, Ge)), "")
    low = next((f"{item.gt} < " for item in metadata if isinstance(item, Gt)), low)
    high = next((f" < {item.lt}" for item in metadata if isinstance(item, Lt)), "")
    high = next(
        (f" <= {item.le}" for item in metadata if isinstance(item, Le) and item.le != MAX_INTEGER),
        high,
    )
    if low and not high:
        number, sign, _ = low.split(" ")
        return f"{type_name} {sign.replace('<', '>')} {number}"
    return f"{low}{type_name}{high}"

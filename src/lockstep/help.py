"""The text of `python train.py --help`: groups, and every key with its value, type, range and meaning."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from omegaconf import OmegaConf
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lockstep import config
from lockstep.overrides import groups
from lockstep.schema import KNOWN, Config

HEAD = """Train an image classifier.

  python train.py                                     scikit-learn's digits, on what this machine has
  python train.py experiment=cifar10 trainer.devices=4
  python train.py -m optimizer.lr=0.05,0.1 seed=0,1   every combination
  python train.py resume=outputs/latest               go on with a run

Groups (group=option):
"""
FOOT = """
Add a parameter of a class that is not listed with +, e.g. +callbacks.checkpoint.every_n_epochs=2.
Hydra's own options: python train.py --hydra-help
"""


def show() -> None:
    """Print it."""
    cfg = config.composed([])
    print(HEAD, end="")
    for group, options in groups(config.CONF).items():
        print(f"  {group:<12} {', '.join(options)}")
    print("\nKeys (key=value):")
    tree: Any = OmegaConf.to_container(cfg)
    rows = list(_rows(Config, tree, ""))
    for key, value, kind, text in rows:
        print(f"  {f'{key}={value}':<44} {kind:<34} {text}".rstrip())
    print(FOOT, end="")


def _rows(model: type[BaseModel], tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in model.model_fields.items():
        key = field.alias or name
        value = tree.get(key)
        section = _section(field, value)
        if section is not None and isinstance(value, dict):
            yield from _rows(section, value, f"{prefix}{key}.")
        elif isinstance(value, dict):
            for inner, item in value.items():
                yield f"{prefix}{key}.{inner}", item["_target_"].rpartition(".")[2], "", ""
        elif key != "_partial_":
            yield f"{prefix}{key}", _value(value), kind_of(field), field.description or ""


def _section(field: FieldInfo, value: Any) -> type[BaseModel] | None:
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
        return field.annotation
    return KNOWN.get(value["_target_"]) if isinstance(value, dict) and "_target_" in value else None


def _value(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def kind_of(field: FieldInfo) -> str:
    """Type and range in a few words, e.g. `int >= 1 or null`."""
    return _kind(field.annotation) + _range(field.metadata)


def _kind(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        nested = [m for item in metadata for m in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return _kind(inner) + _range(nested)
    if origin is Literal:
        return "|".join(_value(value) for value in get_args(annotation))
    if origin in (Union, UnionType):
        parts = [_kind(part) for part in get_args(annotation) if part is not NoneType]
        return " or ".join(parts + ["null"] * (NoneType in get_args(annotation)))
    if origin is list:
        return f"list of {_kind(get_args(annotation)[0])}"
    return annotation.__name__


def _range(metadata: list[Any]) -> str:
    signs = ((Ge, ">=", "ge"), (Gt, ">", "gt"), (Le, "<=", "le"), (Lt, "<", "lt"))
    return "".join(
        f" {sign} {getattr(item, name)}" for item in metadata for kind, sign, name in signs if isinstance(item, kind)
    )

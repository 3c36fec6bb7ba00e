"""Applies overrides to the saved configuration of a run.

key_scopes.py lists the keys that may change.
"""

import re
from collections.abc import Iterable, Iterator
from math import isclose
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from lockstep.config.checks import metric_names
from lockstep.config.checks.validation import check_tree
from lockstep.config.composing.compose import plain_tree
from lockstep.config.errors import ConfigError, Error, literal
from lockstep.config.saved.config_file import to_tree
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.key_scopes import (
    CHECKPOINT,
    EVERYWHERE,
    FREE_CALLBACKS,
    FREE_ON_RESUME,
    names,
    scope,
)
from lockstep.config.schema.legal_keys import Groups
from lockstep.config.schema.sections import Scope
from lockstep.system.redaction import redact
from lockstep.system.trees import at, leaves


def merge_saved(saved: Config, cfg: DictConfig, choices: Iterable[Override]) -> DictConfig:
    """Return the saved configuration with some sections of `cfg`.

    These are the sections that a command decides or that `choices` name.
    """
    chosen = {override.key_or_group for override in choices}
    if not chosen.isdisjoint(EVERYWHERE):
        return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    typed: Any = OmegaConf.to_container(cfg, resolve=False)
    kept = {*names(Scope.SUBMISSION), "resume", *(group.partition("/")[0] for group in chosen)}
    tree = {**_literal(to_tree(saved)), **{key: typed[key] for key in kept if key in typed}}
    return OmegaConf.create(tree, flags={"struct": True})  # Hydra composes a struct, too.


def _literal(value: Any) -> Any:
    """Escape strings that look like interpolations, because saved values are already resolved."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return re.sub(r"(?<!\\)(\\*+)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def resumed_config(saved: Config, cfg: DictConfig, options: Groups) -> Config:
    """Check the configuration of a resumed run, `cfg`, which contains the overrides.

    Raises ConfigError for settings that would make it another run, and for all other errors.
    """
    tree, unresolved = plain_tree(cfg)
    tree = metric_names.resolve_auto({**tree, "resume": None})
    tree = keep_resolved(tree, saved)
    try:
        config = check_tree(tree, options, unresolved)
    except ConfigError as error:
        raise ConfigError(*_changes(to_tree(saved), tree), *error.errors) from error
    # The comparison includes the defaults of the schema, which the saved configuration contains.
    errors = _changes(to_tree(saved), tree, defaults=to_tree(config))
    if errors:
        raise ConfigError(*errors)
    return config


def keep_resolved(tree: dict[str, Any], saved: Config) -> dict[str, Any]:
    """Keep the values that a run resolved when it began.

    These are the preprocessing of its images, and the weights of balanced classes.
    """
    weights = saved.task.arguments().get("class_weights")
    # The counts n / (K weight) add up to n. A list that the user gave is not kept in place of
    # balanced weights.
    is_counted = (
        isinstance(weights, list)
        and all(weights)
        and isclose(sum(1 / each for each in weights), len(weights))
    )
    for name, word, target in (
        ("data", metric_names.AUTO, saved.data),
        ("task", metric_names.BALANCED, saved.task),
    ):
        if isinstance(section := tree.get(name), dict) and (name == "data" or is_counted):
            kept = {
                key: target.arguments().get(key, value)
                for key, value in section.items()
                if value == word
            }
            tree = {**tree, name: section | kept}
    return tree


def _changes(
    saved: dict[str, Any], tree: dict[str, Any], defaults: dict[str, Any] | None = None
) -> list[Error]:
    """Describe every frozen key whose value differs from that of the saved run."""
    before, after = dict(_values(saved)), {**dict(_values(defaults or {})), **dict(_values(tree))}
    changed = [
        key
        for key in {**before, **after}
        if before.get(key) != after.get(key)
        and not (is_free_on_resume(key, saved) and is_free_on_resume(key, tree))
    ]
    # A section with another target has one error.
    replaced = tuple(key.removesuffix("_target_") for key in changed if key.endswith("._target_"))
    before, after = redact(before), redact(after)
    problem, fix = "cannot change on resume, this run has", "remove it, or start a new run"
    return [
        Error(
            "changed",
            f"{key}={literal(after.get(key))}",
            f"{problem} {literal(before.get(key))}",
            fix,
        )
        for key in changed
        if not key.startswith(replaced) or key.removesuffix("_target_") in replaced
    ]


def _values(tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of all leaves.

    Empty sections and the default `_partial_: false` are left out.
    """
    for key, value in leaves(tree, ""):
        if value != {} and not (key.endswith("._partial_") and value is False):
            yield key, value


def is_free_on_resume(key: str, tree: dict[str, Any]) -> bool:
    """Return whether a resume may change the value at `key` of a configuration."""
    path = key.split(".")
    if path[0] == "callbacks":
        callback = at(tree, path[:2])
        target = callback.get("_target_") if isinstance(callback, dict) else None
        return target in (None, *FREE_CALLBACKS) or (
            target == CHECKPOINT and callback.get("monitor") is None
        )
    return scope(key, tree) in FREE_ON_RESUME

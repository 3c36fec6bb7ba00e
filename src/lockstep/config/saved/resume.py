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
from lockstep.config.errors import ConfigError, Error, literal, refuse
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
from lockstep.system.trees import Tree, at, leaves


def merge_saved(saved_config: Config, cfg: DictConfig, choices: Iterable[Override]) -> DictConfig:
    """Return the saved configuration with some sections of `cfg`.

    These are the sections that a command decides or that `choices` name.
    """
    groups = {override.key_or_group for override in choices}
    if not groups.isdisjoint(EVERYWHERE):
        return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    cfg_tree: Any = OmegaConf.to_container(cfg, resolve=False)
    command_keys = {
        *names(Scope.SUBMISSION),
        "resume",
        *(group.partition("/")[0] for group in groups),
    }
    tree = {
        **_literal(to_tree(saved_config)),
        **{key: cfg_tree[key] for key in command_keys if key in cfg_tree},
    }
    return OmegaConf.create(tree, flags={"struct": True})  # Hydra composes a struct, too.


def _literal(value: Any) -> Any:
    """Escape strings that look like interpolations, because saved values are already resolved."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return re.sub(r"(?<!\\)(\\*+)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def resumed_config(saved_config: Config, cfg: DictConfig, options: Groups) -> Config:
    """Check the configuration of a resumed run, `cfg`, which contains the overrides.

    Raises ConfigError for settings that would make it another run, and for all other errors.
    """
    tree, unresolved = plain_tree(cfg)
    tree = metric_names.resolve_auto({**tree, "resume": None})
    tree = keep_resolved(tree, saved_config)
    try:
        config = check_tree(tree, options, unresolved)
    except ConfigError as error:
        raise ConfigError(*_changes(to_tree(saved_config), tree, {}), *error.errors) from error
    # The comparison includes the defaults of the schema, which the saved configuration contains.
    refuse(_changes(to_tree(saved_config), tree, to_tree(config)))
    return config


def keep_resolved(tree: Tree, saved_config: Config) -> Tree:
    """Keep the values that a run resolved when it began.

    These are the preprocessing of its images, and the weights of balanced classes.
    """
    weights = saved_config.task.arguments().get("class_weights")
    # The counts n / (K weight) add up to n. A list that the user gave is not kept in place of
    # balanced weights.
    is_counted = (
        isinstance(weights, list)
        and all(weights)
        and isclose(sum(1 / weight for weight in weights), len(weights))
    )
    for section_name, word, target in (
        ("data", metric_names.AUTO, saved_config.data),
        ("task", metric_names.BALANCED, saved_config.task),
    ):
        if isinstance(section := tree.get(section_name), dict) and (
            section_name == "data" or is_counted
        ):
            resolved_values = {
                key: target.arguments().get(key, value)
                for key, value in section.items()
                if value == word
            }
            tree = {**tree, section_name: section | resolved_values}
    return tree


def _changes(saved_tree: Tree, tree: Tree, defaults: Tree) -> list[Error]:
    """Describe every frozen key whose value differs from that of the saved run."""
    old_values = dict(_values(saved_tree))
    new_values = dict(_values(defaults)) | dict(_values(tree))
    changed_keys = [
        key
        for key in old_values | new_values
        if old_values.get(key) != new_values.get(key)
        and not (is_free_on_resume(key, saved_tree) and is_free_on_resume(key, tree))
    ]
    # A section with another target has one error.
    section_prefixes = tuple(
        key.removesuffix("_target_") for key in changed_keys if key.endswith("._target_")
    )
    old_values, new_values = redact(old_values), redact(new_values)
    problem, hint = "cannot change, this run has", "remove it, or start a new run"
    return [
        Error(
            "changed",
            f"{key}={literal(new_values.get(key))}",
            f"{problem} {literal(old_values.get(key))}",
            hint,
        )
        for key in changed_keys
        if not key.startswith(section_prefixes) or key.removesuffix("_target_") in section_prefixes
    ]


def _values(tree: Tree) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of all leaves.

    Empty sections and the default `_partial_: false` are left out.
    """
    for key, value in leaves(tree, ""):
        if value != {} and not (key.endswith("._partial_") and value is False):
            yield key, value


def is_free_on_resume(key: str, tree: Tree) -> bool:
    """Return whether a resume may change the value at `key` of a configuration."""
    path = key.split(".")
    if path[0] == "callbacks":
        callback = at(tree, path[:2])
        target = callback.get("_target_") if isinstance(callback, dict) else None
        return target in (None, *FREE_CALLBACKS) or (
            target == CHECKPOINT and callback.get("monitor") is None
        )
    return scope(key, tree) in FREE_ON_RESUME

"""Overrides of a command line: the configurations they describe, or all their errors."""

import contextlib
import copy
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig

from lockstep.config.checks import signatures
from lockstep.config.checks.validation import check_config
from lockstep.config.composing import override_errors, typed_text
from lockstep.config.composing.compose import (
    DEFAULT,
    REFUSALS,
    Source,
    compose_config,
    groups,
    parse_override,
    plain_tree,
)
from lockstep.config.composing.custom_targets import drop_replaced_parameters
from lockstep.config.composing.sweep_space import combinations, values_of
from lockstep.config.errors import ConfigError, Error, one_line
from lockstep.config.saved.config_file import to_tree
from lockstep.config.saved.resume import merge_saved, resumed_config
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.key_scopes import SAME_FOR_ALL_JOBS, names
from lockstep.config.schema.legal_keys import Groups
from lockstep.system import processes
from lockstep.system.internals import apply_override

Choice = tuple[DictConfig | None, list[Error]]  # a configuration, and the errors of its choices


class Plan(NamedTuple):
    """Configurations of the first jobs of a command line, and keys that only get a value in a job."""

    configs: list[Config]
    later: frozenset[str]


def check(overrides: Sequence[str], source: Source = DEFAULT, **settings: Any) -> Plan:
    """Run both rounds of the check: `plan`, then the signatures of all targets. Raises ConfigError."""
    planned = plan(overrides, source, **settings)
    check_called(planned.configs, planned.later)
    return planned


def check_called(configs: Sequence[Config], later: Collection[str] = ()) -> None:
    """Run the second round alone. A new run on this machine does not need it: its training begins with it."""
    errors = processes.call(signatures.errors, [to_tree(config) for config in configs], later)
    if errors:
        raise ConfigError(*errors)


def plan(
    overrides: Sequence[str],
    source: Source = DEFAULT,
    *,
    is_multirun: bool = False,
    is_benchmark: bool = False,
    saved: Config | None = None,
) -> Plan:
    """Compose and check the configurations of some overrides. Raises ConfigError with all their errors.

    Of a sweep the first jobs are checked. Overrides change the `saved` configuration of a run if there is one.
    """
    options = groups(*source.folders)
    errors: list[Error] = []
    values: list[list[str]] = []
    for text in overrides:
        try:
            override = parse_override(text)
            if misplaced := override_errors.misplacement(override, is_multirun=is_multirun, is_benchmark=is_benchmark):
                errors.append(misplaced)
            else:
                values.append(values_of(override, options, overrides, source))
        except HydraException:
            errors.append(typed_text.syntax_error(text))
        except ConfigError as error:
            errors += error.errors
    choose = cache(partial(_compose_choices, source=source, options=options))
    configs: list[Config] = []
    later: set[str] = set()
    for texts in combinations(values):
        config, job_errors, job_later = _job([parse_override(text) for text in texts], choose, options, source, saved)
        errors += [error for error in job_errors if error.key not in {known.key for known in errors}]
        later |= job_later
        if config is not None:
            configs.append(config)
            may_search = is_multirun or saved is not None  # a trial of a search keeps it
            errors += _sweep_errors(config, configs[0], may_search=may_search, is_multirun=is_multirun)
    if errors:
        raise ConfigError(*errors)
    return Plan(configs, frozenset(later))


def _sweep_errors(config: Config, first: Config, *, may_search: bool, is_multirun: bool) -> list[Error]:
    different = [name for name in names(*SAME_FOR_ALL_JOBS) if getattr(config, name) != getattr(first, name)]
    if different:
        return [
            Error(
                "conflict", different[0], "differs between the jobs of a sweep, which share it", "choose one experiment"
            )
        ]
    if config.search is not None and not may_search:
        hint = "add -m and an interval, e.g. 'optimizer.lr=interval(0.01,1)'"
        return [Error("conflict", "search", "draws values for a sweep", hint)]
    if config.resume is not None and is_multirun:
        return [Error("conflict", "resume", "continues one run", "remove -m; a sweep resumes by repeating its command")]
    return []


def _job(
    job: Sequence[Override],
    choose: Callable[[tuple[str, ...]], Choice],
    options: Groups,
    source: Source,
    saved: Config | None,
) -> tuple[Config | None, list[Error], set[str]]:
    """Return one configuration, its errors, and the keys that only get a value in the job.

    Hydra composes the options; values are applied here one by one, so that each reports its error.
    """
    choices = [override for override in job if is_choice(override, options)]
    values = [override for override in job if override not in choices]
    chosen = tuple(override.input_line or "" for override in choices)
    cfg, refused = choose(chosen)
    if cfg is None or any(error.key.startswith(("experiment=", "debug=")) for error in refused):
        return None, refused, set()
    cfg, errors = _apply_overrides(cfg if saved is None else merge_saved(saved, cfg, choices), values, options)
    if not refused and saved is None:
        texts = [*chosen, *(override.input_line or "" for override in values)]
        cfg = drop_replaced_parameters(cfg, texts, partial(compose_config, source=source))
    later = {key for key, reason in plain_tree(cfg)[1].items() if not reason}
    errors = [*refused, *errors]
    try:
        return check_config(cfg, options) if saved is None else resumed_config(saved, cfg, options), errors, later
    except ConfigError as error:
        return None, [*errors, *error.errors], later


def check_job(cfg: DictConfig, texts: Sequence[str], compose: Callable[[list[str]], DictConfig]) -> Config:
    """Check the configuration that Hydra composed of these overrides for a job: the first round."""
    return check_config(drop_replaced_parameters(cfg, texts, compose))


def is_choice(override: Override, options: Groups) -> bool:
    """Return whether Hydra has to read an override: it chooses an option, or is one of Hydra's own settings."""
    return override.key_or_group in options or override.is_hydra_override()


def _compose_choices(choices: tuple[str, ...], source: Source, options: Groups) -> Choice:
    """Compose some choices, without those that Hydra refuses."""
    with contextlib.suppress(*REFUSALS):
        return compose_config(choices, source), []
    errors, good = [], []
    for text in choices:
        try:
            compose_config([text], source)
            good.append(text)
        except REFUSALS as error:
            option_error = override_errors.option_error(parse_override(text), options)
            errors.append(option_error or Error("failed", text, f": {one_line(error)}"))
    try:
        return compose_config(good, source), errors
    except REFUSALS as error:
        return None, [*(errors if good else ()), Error("failed", "", one_line(error))]


def _apply_overrides(cfg: DictConfig, overrides: Sequence[Override], options: Groups) -> tuple[DictConfig, list[Error]]:
    """Apply overrides as Hydra does, one by one. Returns the errors of those that it refuses, too."""
    cfg, others = copy.copy(cfg), []
    for override in overrides:
        changed = copy.copy(cfg)  # a refused override may have changed something
        try:
            apply_override(override, changed)
            cfg = changed
        except HydraException as error:
            others.append((override, error))
    # at the end: other overrides may have changed a _target_ and with it the legal names
    return cfg, [override_errors.refusal(cfg, override, error, options) for override, error in others]

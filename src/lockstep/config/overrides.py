"""Composes and checks the jobs that the overrides of a command describe.

Each job is composed and checked once, and all errors are reported together.
"""

import contextlib
import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict

from lockstep.config.checks import signatures
from lockstep.config.checks.validation import check_config
from lockstep.config.composing import hydra_job, override_errors, sweep_space, typed_text
from lockstep.config.composing.compose import (
    DEFAULT,
    LAST,
    REFUSALS,
    Source,
    apply_value,
    compose_config,
    groups,
    is_group,
    parse_override,
)
from lockstep.config.composing.custom_targets import drop_replaced_parameters
from lockstep.config.errors import ConfigError, Error, config_error, one_line, refuse
from lockstep.config.saved.config_file import to_tree
from lockstep.config.saved.resume import merge_saved, resumed_config
from lockstep.config.schema.configuration import Config, fields
from lockstep.config.schema.key_scopes import SAME_FOR_ALL_JOBS, names
from lockstep.config.schema.legal_keys import Groups
from lockstep.system import processes

# At most this many points of a search are checked before it starts, and at most this many jobs of a
# sweep if there are errors.
MAX_CHECKED = 50


class Job(NamedTuple):
    """One training of a command: its overrides, its checked configuration and its folder.

    `root` is the folder of the run. In a sweep it is the folder of the sweep, and `subdir` is the
    path of the run below it. `cfg` is the configuration that Hydra composed, with the section
    `hydra`. It is None for a job of a sweep.
    """

    overrides: tuple[str, ...]
    config: Config
    root: str
    subdir: str
    cfg: DictConfig | None

    @property
    def folder(self) -> Path | None:
        """Folder named by `hydra.run.dir` or `hydra.sweep.dir`, or None for the current folder."""
        path = Path(self.root).absolute()
        return None if path == Path.cwd() else path


class Plan(NamedTuple):
    """Jobs of a command line in their order, or the first points of a search."""

    jobs: list[Job]

    @property
    def configs(self) -> list[Config]:
        return [job.config for job in self.jobs]


class Command(NamedTuple):
    """Data that all jobs of a command share.

    Overrides change the `saved` configuration of a run if there is one. `compositions` maps choices
    of options to the configuration that Hydra composed from them, and to the errors of the choices
    that Hydra refused. The configuration is None if Hydra refused an experiment or a debug option,
    because the other overrides may need it.
    """

    source: Source
    options: Groups
    is_multirun: bool
    saved: Config | None
    compositions: dict[tuple[str, ...], tuple[DictConfig | None, list[Error]]]


def check(overrides: Sequence[str], source: Source = DEFAULT, **settings: Any) -> Plan:
    """Run both rounds of the check: `plan`, then the signatures of all targets.

    Raises ConfigError.
    """
    job_plan = plan(overrides, source, **settings)
    check_called(job_plan.configs)
    return job_plan


def check_called(configs: Sequence[Config]) -> None:
    """Run only the second round of the check, which reads the signatures of all targets.

    A run on this machine does not need it, because its training begins with this check. Raises
    ConfigError.
    """
    refuse(processes.call(signatures.errors, [to_tree(config) for config in configs]))


def plan(
    overrides: Sequence[str],
    source: Source = DEFAULT,
    *,
    is_multirun: bool = False,
    is_benchmark: bool = False,
    saved_config: Config | None = None,
) -> Plan:
    """Compose and check the jobs of some overrides.

    For a search, these are points at the ends of its intervals. Overrides change `saved_config` if
    there is one. Raises ConfigError with the errors of all jobs.
    """
    command = Command(source, groups(*source.folders), is_multirun, saved_config, {})
    errors: list[Error] = []
    override_values: list[tuple[Override, list[str]]] = []
    for line in overrides:
        try:
            override = parse_override(line)
            if misplacement := override_errors.misplacement(
                override, is_multirun=is_multirun, is_benchmark=is_benchmark
            ):
                errors.append(misplacement)
            else:
                override_values.append((override, sweep_space.values_of(override, command.options)))
        except HydraException:
            errors.append(typed_text.syntax_error(line))
        except ConfigError as error:
            errors += error.errors
    jobs: list[Job] = []
    for number, lines in enumerate(sweep_space.combinations(override_values)):
        if number >= MAX_CHECKED and (errors or jobs[0].config.search is not None):
            break
        try:
            jobs.append(_job(lines, number, command))
            job_errors = _sweep_errors(jobs[-1].config, jobs[0].config, command)
        except ConfigError as error:
            job_errors = error.errors
        reported_keys = {error.key for error in errors}
        errors += [error for error in job_errors if error.key not in reported_keys]
    if jobs and jobs[0].config.search is None:
        errors += sweep_space.search_errors(override_values)
    refuse(errors)
    return Plan(jobs)


def _sweep_errors(config: Config, first_config: Config, command: Command) -> list[Error]:
    unequal_keys = [
        key
        for key in names(*SAME_FOR_ALL_JOBS)
        if getattr(config, key) != getattr(first_config, key)
    ]
    if unequal_keys:
        return [
            Error(
                "conflict",
                unequal_keys[0],
                "differs between the jobs of a sweep, which share it",
                "choose one experiment",
            )
        ]
    # A trial of a search keeps the section.
    if config.search is not None and not command.is_multirun and command.saved is None:
        return [
            Error(
                "conflict",
                "search",
                "draws values for a sweep",
                "add -m and an interval, e.g. 'optimizer.lr=interval(0.01,1)'",
            )
        ]
    if config.resume is not None and command.is_multirun:
        return [
            Error(
                "conflict",
                "resume",
                "continues one run",
                "remove -m; a sweep resumes by repeating its command",
            )
        ]
    return []


def _job(overrides: Sequence[str], number: int, command: Command) -> Job:
    """Compose and check one job of a command.

    Raises ConfigError with all its errors.
    """
    cfg, errors = _compose(overrides, command)
    config = None
    root = subdir = ""
    try:
        root, subdir = hydra_job.begin(cfg, overrides, number, is_multirun=command.is_multirun)
    except ConfigError as error:
        errors += error.errors
    errors += override_errors.unused_settings(cfg)
    try:
        with hydra_job.hydra_config(cfg):
            if command.saved is None:
                config = check_config(cfg, command.options)
            else:
                config = resumed_config(command.saved, cfg, command.options)
    except ConfigError as error:
        errors += error.errors
    if config is None or errors:
        raise ConfigError(*errors)
    return Job(tuple(overrides), config, root, subdir, None if command.is_multirun else cfg)


def compose_trial(overrides: Sequence[str], number: int, source: Source) -> Job:
    """Compose and check a trial of a sweep.

    Raises ConfigError with all its errors.
    """
    return _job(overrides, number, Command(source, groups(*source.folders), True, None, {}))


def _compose(overrides: Sequence[str], command: Command) -> tuple[DictConfig, list[Error]]:
    """Return the composed configuration, and the errors of overrides that cannot be applied.

    Raises ConfigError for an experiment or a debug option that Hydra refuses, and if nothing can be
    composed.
    """
    parsed_overrides = [parse_override(line) for line in overrides]
    choices = [
        override for override in parsed_overrides if _is_choice(override, overrides, command)
    ]
    values = [override for override in parsed_overrides if override not in choices]
    # Choices are composed once for all jobs that have the same ones.
    lines = tuple(override.input_line or "" for override in choices)
    if lines not in command.compositions:
        command.compositions[lines] = _compose_accepted(lines, command)
    composed_cfg, choice_errors = command.compositions[lines]
    if composed_cfg is None:
        raise ConfigError(*choice_errors)
    # This is faster than a deep copy.
    cfg, errors = pickle.loads(pickle.dumps(composed_cfg)), list(choice_errors)
    hydra = cfg.hydra
    if command.saved is not None:
        cfg = merge_saved(command.saved, cfg, choices)
    refusals: list[tuple[Override, Exception]] = []
    for override in values:
        try:
            apply_value(cfg, override)
        except REFUSALS as error:
            refusals.append((override, error))
    if command.saved is not None:
        with open_dict(cfg):
            cfg.hydra = hydra
    elif not errors and not refusals:
        cfg = drop_replaced_parameters(cfg, overrides, command.source)
    # Refusals are described last, because other overrides may have changed a `_target_` and with it
    # the legal names.
    errors += [
        override_errors.refusal(cfg, override, error, command.options)
        for override, error in refusals
    ]
    return cfg, errors


def _is_choice(override: Override, overrides: Sequence[str], command: Command) -> bool:
    """Return whether an override chooses an option, or is one of Hydra's own settings."""
    key = override.key_or_group
    if override.is_hydra_override():
        return True
    if isinstance(override.value(), dict):
        return False
    if key in command.options:
        return True
    return "." not in key and key not in fields(Config) and is_group(key, overrides, command.source)


def _compose_accepted(
    lines: Sequence[str], command: Command
) -> tuple[DictConfig | None, list[Error]]:
    """Compose choices together, or one after the other if Hydra refuses them.

    Returns the entry of `compositions`. Raises ConfigError if the accepted choices cannot be
    composed.
    """
    compose = partial(compose_config, source=command.source, with_hydra=True)
    with contextlib.suppress(*REFUSALS):
        return compose(lines), []
    accepted_lines: list[str] = []
    errors: list[Error] = []
    is_complete = True
    for line in lines:
        try:
            compose([*accepted_lines, line])
            accepted_lines.append(line)
        except REFUSALS as error:
            override = parse_override(line)
            is_complete = is_complete and override.key_or_group not in LAST
            errors.append(
                override_errors.option_error(override, command.options)
                or Error("failed", line, f": {one_line(error)}")
            )
    try:
        return compose(accepted_lines) if is_complete else None, errors
    except REFUSALS as error:
        raise config_error("failed", "", one_line(error)) from error

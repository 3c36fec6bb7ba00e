"""The jobs that the overrides of a command describe, each composed and checked once, or all their errors."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.types import IntervalSweep, Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError

from lockstep.config.checks import signatures
from lockstep.config.checks.validation import check_config
from lockstep.config.composing import hydra_job, override_errors, sweep_space, typed_text
from lockstep.config.composing.compose import DEFAULT, LAST, REFUSALS, Source, compose_config, groups, parse_override
from lockstep.config.composing.custom_targets import drop_replaced_parameters
from lockstep.config.errors import ConfigError, Error, one_line
from lockstep.config.saved.config_file import to_tree
from lockstep.config.saved.resume import merge_saved, resumed_config
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.key_scopes import SAME_FOR_ALL_JOBS, names
from lockstep.config.schema.legal_keys import Groups
from lockstep.system import processes

MAX_CHECKED = 50  # points of a search that are checked before it starts, and jobs of a sweep with errors


class Job(NamedTuple):
    """A training: its overrides, its checked configuration, and its folder, in a sweep a part below that of the sweep.

    `cfg` is what Hydra composed, with the section `hydra`, of a job that is not of a sweep.
    """

    overrides: tuple[str, ...]
    config: Config
    root: str
    subdir: str
    cfg: DictConfig | None

    @property
    def folder(self) -> Path | None:
        """The folder that `hydra.run.dir` or `hydra.sweep.dir` names, None without one."""
        path = Path(self.root).absolute()
        return None if path == Path.cwd() else path


class Plan(NamedTuple):
    """The jobs of a command line, in their order; of a search the first points."""

    jobs: list[Job]

    @property
    def configs(self) -> list[Config]:
        return [job.config for job in self.jobs]


class Command(NamedTuple):
    """What the jobs of a command share. Overrides change the `saved` configuration of a run if there is one.

    Texts and keys that Hydra has `refused` in one job are left out in the next: their errors are known. `rejected` has
    the configurations of jobs with errors by their structure; the next job of a structure assigns its values there.
    """

    source: Source
    options: Groups
    is_multirun: bool
    saved: Config | None
    refused: set[str]
    rejected: dict[tuple[str, ...], DictConfig]


def check(overrides: Sequence[str], source: Source = DEFAULT, **settings: Any) -> Plan:
    """Run both rounds of the check: `plan`, then the signatures of all targets. Raises ConfigError."""
    planned = plan(overrides, source, **settings)
    check_called(planned.configs)
    return planned


def check_called(configs: Sequence[Config]) -> None:
    """Run the second round alone. A new run on this machine does not need it: its training begins with it."""
    errors = processes.call(signatures.errors, [to_tree(config) for config in configs])
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
    """Compose and check the jobs of some overrides. Raises ConfigError with all their errors.

    Of a search, points from the ends of its intervals. Overrides change the `saved` configuration if there is one.
    """
    command = Command(source, groups(*source.folders), is_multirun, saved, set(), {})
    errors: list[Error] = []
    typed: list[tuple[Override, list[str]]] = []
    for text in overrides:
        try:
            override = parse_override(text)
            if misplaced := override_errors.misplacement(override, is_multirun=is_multirun, is_benchmark=is_benchmark):
                errors.append(misplaced)
            else:
                typed.append((override, sweep_space.values_of(override, command.options)))
        except HydraException:
            errors.append(typed_text.syntax_error(text))
        except ConfigError as error:
            errors += error.errors
    intervals = [(override, texts) for override, texts in typed if isinstance(override.value(), IntervalSweep)]
    jobs: list[Job] = []
    for number, texts in enumerate(sweep_space.combinations(typed)):
        if number >= MAX_CHECKED and (errors or jobs[0].config.search is not None):
            break
        try:
            jobs.append(_job(texts, number, command))
            job_errors = _sweep_errors(jobs[-1].config, jobs[0].config, command)
        except ConfigError as error:
            job_errors = error.errors
        errors += [error for error in job_errors if error.key not in {known.key for known in errors}]
    if intervals and jobs and jobs[0].config.search is None:
        interval, ends = intervals[0]
        errors.append(sweep_space.search_error(interval, *ends))
    if errors:
        raise ConfigError(*errors)
    return Plan(jobs)


def _sweep_errors(config: Config, first: Config, command: Command) -> list[Error]:
    different = [name for name in names(*SAME_FOR_ALL_JOBS) if getattr(config, name) != getattr(first, name)]
    if different:
        problem = "differs between the jobs of a sweep, which share it"
        return [Error("conflict", different[0], problem, "choose one experiment")]
    may_search = command.is_multirun or command.saved is not None  # a trial of a search keeps it
    if config.search is not None and not may_search:
        hint = "add -m and an interval, e.g. 'optimizer.lr=interval(0.01,1)'"
        return [Error("conflict", "search", "draws values for a sweep", hint)]
    if config.resume is not None and command.is_multirun:
        return [Error("conflict", "resume", "continues one run", "remove -m; a sweep resumes by repeating its command")]
    return []


def _job(texts: Sequence[str], number: int, command: Command) -> Job:
    """Compose and check one job of a command. Raises ConfigError with all its errors."""
    cfg, errors = _compose(texts, command)
    config = None
    root = subdir = ""
    try:
        root, subdir = hydra_job.begin(cfg, number, is_multirun=command.is_multirun)
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
        command.rejected[_structure(texts, command.options)] = cfg
        raise ConfigError(*errors)
    return Job(tuple(texts), config, root, subdir, None if command.is_multirun else cfg)


def compose_trial(texts: Sequence[str], number: int, source: Source) -> Job:
    """Compose and check a trial of a sweep. Raises ConfigError with all its errors."""
    return _job(texts, number, Command(source, groups(*source.folders), True, None, set(), {}))


def _compose(texts: Sequence[str], command: Command) -> tuple[DictConfig, list[Error]]:
    """Return the configuration of some overrides, and the errors of those that Hydra refuses.

    Raises ConfigError for an experiment that Hydra refuses, because the other overrides may need it.
    """
    compose = partial(compose_config, source=command.source, with_hydra=True)
    drop = partial(drop_replaced_parameters, texts=texts, compose=partial(compose_config, source=command.source))
    if _has_refused_experiment(texts, command):
        raise ConfigError
    good = [text for text in texts if command.refused.isdisjoint((text, parse_override(text).key_or_group))]
    structure = _structure(texts, command.options)
    with contextlib.suppress(*REFUSALS):
        if structure in command.rejected:
            cfg = command.rejected[structure]
            for text in good:
                if text not in structure:
                    _assign(cfg, text)
            return cfg, []
        if command.saved is None:
            return drop(compose(good)), []
    choices = [text for text in good if is_choice(parse_override(text), command.options)]
    values = [text for text in good if text not in choices]
    cfg, refusals = _compose_each(choices, compose)
    errors = [_choice_error(text, error, command.options) for text, error in refusals.items()]
    command.refused.update(refusals)
    if _has_refused_experiment(texts, command):
        raise ConfigError(*errors)
    choices = [text for text in choices if text not in refusals]
    if command.saved is None:
        cfg, refusals = _compose_each(values, lambda values: compose([*choices, *values]), cfg)
        cfg = cfg if errors else drop(cfg)
    else:
        hydra = cfg.hydra
        base = merge_saved(command.saved, cfg, map(parse_override, choices))
        cfg, refusals = _compose_each(values, partial(compose, base=base))
        cfg.hydra = hydra
    command.refused.update(refusals)
    # after all others, which may have changed a _target_ and with it the legal names
    for text, error in refusals.items():
        errors.append(override_errors.refusal(cfg, parse_override(text), error, command.options))
    command.refused.update(error.key for error in errors)
    return cfg, errors


def _has_refused_experiment(texts: Sequence[str], command: Command) -> bool:
    return any(parse_override(text).key_or_group in LAST for text in command.refused.intersection(texts))


def _compose_each(
    texts: Sequence[str], compose: Callable[[Sequence[str]], DictConfig], cfg: DictConfig | None = None
) -> tuple[DictConfig, dict[str, Exception]]:
    """Compose overrides together, or if Hydra refuses that one after the other. Returns the refused ones, too.

    `cfg` is what Hydra composes without them. Raises ConfigError if it refuses that.
    """
    if cfg is None:
        with contextlib.suppress(*REFUSALS):
            return compose(texts), {}
    good: list[str] = []
    refusals: dict[str, Exception] = {}
    for text in texts:
        try:
            if cfg is not None and _is_assignment(parse_override(text)):
                _assign(cfg, text)
            else:
                cfg = compose([*good, text])
            good.append(text)
        except REFUSALS as error:
            refusals[text] = error
    try:
        return compose([]) if cfg is None else cfg, refusals
    except REFUSALS as error:
        raise ConfigError(Error("failed", "", one_line(error))) from error


def _choice_error(text: str, error: Exception, options: Groups) -> Error:
    return override_errors.option_error(parse_override(text), options) or Error("failed", text, f": {one_line(error)}")


def _structure(texts: Sequence[str], options: Groups) -> tuple[str, ...]:
    """Return the overrides that do more than to replace the value of a setting."""
    typed = [(text, parse_override(text)) for text in texts]
    return tuple(text for text, override in typed if is_choice(override, options) or not _is_assignment(override))


def _is_assignment(override: Override) -> bool:
    """Return whether an override that is not a choice only replaces the value of a setting."""
    is_value = override.type is OverrideType.CHANGE and override.package is None
    return is_value and not override.key_or_group.endswith("_target_")


def _assign(cfg: DictConfig, text: str) -> None:
    """Replace the value of a setting as Hydra does. Raises OmegaConfBaseException if `cfg` does not have it."""
    override = parse_override(text)
    key = override.key_or_group
    parent = OmegaConf.select(cfg, key.rpartition(".")[0]) if "." in key else cfg
    if not OmegaConf.is_config(parent):
        raise ConfigKeyError(key)
    OmegaConf.update(cfg, key, override.value(), merge=True)


def is_choice(override: Override, options: Groups) -> bool:
    """Return whether an override chooses an option, or is one of Hydra's own settings."""
    return override.key_or_group in options or override.is_hydra_override()

"""The overrides of a command line: what they ask for, and every error of them at once."""

import copy
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from lockstep.config import signatures
from lockstep.config.compose import CONF, DEFAULT, Source, composed, plain
from lockstep.config.errors import ConfigError, near, one_line
from lockstep.config.foreign_names import hint
from lockstep.config.key_scopes import EVERYWHERE, SAME_FOR_ALL_JOBS, is_set_by_environments, names, scope
from lockstep.config.options import REFUSALS, groups, parsed, targets_of
from lockstep.config.resume import on_top_of, resumed_config
from lockstep.config.schema import CALLED, Config, fields
from lockstep.config.sections import Scope
from lockstep.config.storage import to_tree
from lockstep.config.sweep_space import combinations, is_drawn, values_of
from lockstep.config.targets import Groups, legal_names, meant_key, unknown_key
from lockstep.config.validation import checked
from lockstep.system import processes
from lockstep.system.trees import at

Choice = tuple[DictConfig | None, list[str]]


class Plan(NamedTuple):
    """What a command line asks for: the configurations of its first jobs, and keys that only a job has values for."""

    configs: list[Config]
    later: frozenset[str]


def check(overrides: Sequence[str], source: Source = DEFAULT, **settings: Any) -> Plan:
    """Both rounds of a check: `plan`, and then everything that the configurations call."""
    asked = plan(overrides, source, **settings)
    check_called(asked.configs, asked.later)
    return asked


def check_called(configs: Sequence[Config], later: Collection[str] = ()) -> None:
    """The second round by itself. A new run that is trained now needs none: its training begins with it."""
    errors = processes.call(signatures.errors, [to_tree(config) for config in configs], later)
    if errors:
        raise ConfigError(errors)


def plan(
    overrides: Sequence[str],
    source: Source = DEFAULT,
    *,
    is_multirun: bool = False,
    is_benchmark: bool = False,
    saved: Config | None = None,
) -> Plan:
    """What these overrides ask for. Raises ConfigError with all their errors; of a sweep, of its first jobs.

    They change the `saved` configuration of a run where that is given, else what conf/ has.
    """
    _check_source(source)
    options = groups(*source.folders)
    errors: list[str] = []
    values: list[list[str]] = []
    configs: list[Config] = []
    later: set[str] = set()
    for text in overrides:
        try:
            override = parsed(text)
            elsewhere = _elsewhere(override, is_benchmark=is_benchmark)
            if elsewhere:
                errors.append(elsewhere)
            elif override.is_sweep_override() and not is_multirun:
                hint = "give one" if is_benchmark else "add -m to sweep over them"
                errors.append(f"{text} lists several values: {hint}, or quote a value with commas")
            elif override.is_sweep_override() and scope(override.key_or_group) in SAME_FOR_ALL_JOBS:
                errors.append(f"{text} lists several values, but it is of the whole sweep: give one")
            else:
                values.append(values_of(override, options, partial(is_drawn, overrides, options, source)))
        except HydraException:
            errors.append(f"{text!r} cannot be read: write key=value, no spaces around =, special characters in quotes")
        except ConfigError as error:
            errors += error.errors

    @cache
    def choose(choices: tuple[str, ...]) -> Choice:
        return _chosen(choices, source)

    for texts in combinations(values):
        config, job_errors, job_later = _job([parsed(text) for text in texts], choose, options, source, saved)
        errors += job_errors
        later |= job_later
        if config is not None:
            configs.append(config)
            errors += _sweep_errors(config, configs[0], is_multirun=is_multirun)
    if errors:
        raise ConfigError(list(dict.fromkeys(errors)))
    return Plan(configs, frozenset(later))


def _check_source(source: Source) -> None:
    """Raise ConfigError where a folder or the primary configuration is not there."""
    for folder in source.folders:
        if not folder.is_dir():
            raise ConfigError([f"there is no folder {folder}: correct the path of the configuration"])
    if not any((folder / f"{source.name}.yaml").is_file() for folder in source.folders):
        raise ConfigError([f"there is no {source.name}.yaml in {source.conf}: correct --config-name"])


def hydra_value(key: str, texts: Sequence[str], source: Source) -> str | None:
    """What Hydra will read at a key of its own, None where these overrides leave it to conf/lockstep.yaml.

    Values that differ between the jobs of a sweep are left out. Raises ConfigError where it cannot be told.
    """
    parsed_overrides = [parsed(text) for text in texts]
    may_say = any(override.is_hydra_override() or override.key_or_group in EVERYWHERE for override in parsed_overrides)
    if not may_say and source == Source():
        return None  # to compose once more would take 0.1 s
    kept = [override.input_line or "" for override in parsed_overrides if not override.is_sweep_override()]
    try:
        value = OmegaConf.select(composed(kept, source, with_hydra=True), key)
    except REFUSALS as error:
        raise ConfigError([f"{key}: {one_line(error)}"]) from error
    return None if value in (None, ".") else str(value)


def _sweep_errors(config: Config, first: Config, *, is_multirun: bool) -> list[str]:
    apart = [name for name in names(*SAME_FOR_ALL_JOBS) if getattr(config, name) != getattr(first, name)]
    if apart:
        return [f"{apart[0]} differs between the jobs, but it is of the whole sweep: choose one experiment"]
    if config.search is not None and not is_multirun:
        return ["search draws values for a sweep: add -m, and what to search, e.g. 'optimizer.lr=interval(0.01,1)'"]
    if config.resume is not None and is_multirun:
        return ["resume goes on with one run: leave -m out; a sweep goes on by the same command again"]
    return []


def benchmarked(overrides: Sequence[str]) -> list[str]:
    """The overrides of `lockstep benchmark`, which chooses conf/benchmark/default.yaml where they choose no other."""
    added = [f"+{text}" if text.startswith("benchmark=") else text for text in overrides]
    return added if any(text.startswith("+benchmark=") for text in added) else ["+benchmark=default", *added]


def _elsewhere(override: Override, *, is_benchmark: bool) -> str | None:
    """The error of an override that belongs to another command, or to the environments of a benchmark."""
    key, text = override.key_or_group, override.input_line
    if not is_benchmark:
        is_foreign = key.partition(".")[0] == "benchmark"
        return f"{text}: only `lockstep benchmark` reads benchmark: leave it out" if is_foreign else None
    if key == "resume":
        return f"{text}: a benchmark starts anew: leave it out"
    if scope(key) is Scope.SUBMISSION:
        return f"{text}: a benchmark measures the machine it is started on: leave it out"
    if is_set_by_environments(key):
        return f"{text}: every environment of a benchmark says it itself: see benchmark.environments and budget_s"
    return None


def _job(
    job: Sequence[Override],
    choose: Callable[[tuple[str, ...]], Choice],
    options: Groups,
    source: Source,
    saved: Config | None,
) -> tuple[Config | None, list[str], set[str]]:
    """One configuration, its errors, and the keys that only the job has values for.

    Options are Hydra's to choose, values are put in here, one by one.
    """
    choices = [override for override in job if is_choice(override, options)]
    values = [override for override in job if override not in choices]
    wrong = {} if _searches_elsewhere(job) else {o.input_line: f for o in choices if (f := _option_error(o, options))}
    good = {o.key_or_group: o.input_line or "" for o in choices if o.input_line not in wrong}
    cfg, refused = choose(tuple(good.values()))
    errors = [*wrong.values(), *refused]
    if cfg is None:
        return None, errors, set()
    cfg, wrong_values = _put_in(cfg if saved is None else on_top_of(saved, cfg, choices), values, options)
    errors += wrong_values
    if not refused and saved is None:
        texts = [*good.values(), *(override.input_line or "" for override in values)]
        cfg = _with_own_sections(cfg, texts, partial(composed, source=source))
    later = {key for key, reason in plain(cfg)[1].items() if not reason}
    try:
        return checked(cfg, options) if saved is None else resumed_config(saved, cfg, options), errors, later
    except ConfigError as error:
        return None, [*errors, *error.errors], later


def of_job(cfg: DictConfig, texts: Sequence[str], compose: Callable[[list[str]], DictConfig]) -> Config:
    """The configuration of a job as Hydra has composed it of these overrides, after the first round of the check."""
    return checked(_with_own_sections(cfg, texts, compose))


def _with_own_sections(cfg: DictConfig, texts: Sequence[str], compose: Callable[[list[str]], DictConfig]) -> DictConfig:
    """A configuration in which a section with a custom `_target_` has no parameter of the target that it replaces.

    `texts` are all overrides of `cfg`, which `compose` made of them. A section whose option has the `_target_` itself
    stays as it is.
    """
    typed = [(text, parsed(text)) for text in texts]
    for group, section_type in CALLED.items():
        if OmegaConf.select(cfg, f"{group}._target_") in (None, *targets_of(group, CONF)):
            continue
        others = [
            text
            for text, override in typed
            if override.key_or_group != group and ("." not in override.key_or_group or override.is_hydra_override())
        ]
        values = [
            f"++{text.lstrip('+')}"
            for text, override in typed
            if override.key_or_group.startswith(f"{group}.") and not override.is_delete()
        ]
        try:
            alone = compose([*others, f"~{group}", *values])
        except HydraException:  # the defaults choose no option of this group
            continue
        if OmegaConf.select(alone, f"{group}._target_") is not None:
            ours = [name for name in fields(section_type) if name[0] != "_" and name not in section_type.passed]
            kept = {name: cfg[group][name] for name in ours if name in cfg[group]}
            cfg[group] = OmegaConf.merge(kept, alone[group])
    return cfg


def is_choice(override: Override, options: Groups) -> bool:
    """Whether Hydra has to read an override, which chooses an option or is of Hydra's own settings."""
    return override.key_or_group in options or override.is_hydra_override()


def _searches_elsewhere(job: Sequence[Override]) -> bool:
    """Whether there may be options that only Hydra finds."""
    return any(override.key_or_group == "hydra.searchpath" for override in job)


def _option_error(override: Override, options: Groups) -> str | None:
    key, value = override.key_or_group, override.value()
    if key not in options or override.is_delete():
        return None
    wrong = [option for option in (value if isinstance(value, list) else [value]) if option not in options[key]]
    if not wrong:
        return None
    text = f"{override.input_line} is no option"
    if line := hint(f"{key}={wrong[0]}"):
        return f"{text}: {line}"
    meant = near(str(wrong[0]), options[key])
    return text + (f", did you mean {meant[0]}? Choose" if meant else ": choose") + f" from {', '.join(options[key])}"


def _chosen(choices: Sequence[str], source: Source) -> Choice:
    """The configuration of some choices, and the errors of those that Hydra refuses."""
    try:
        return composed(choices, source), []
    except REFUSALS:
        pass
    try:
        composed([], source)
    except REFUSALS as error:
        return None, [one_line(error)]
    errors, good = [], []
    for text in choices:
        try:
            composed([text], source)
            good.append(text)
        except REFUSALS as error:
            errors.append(f"{text}: {one_line(error)}")
    try:
        return composed(good, source), errors
    except REFUSALS as error:
        return None, [*errors, one_line(error)]


def _put_in(cfg: DictConfig, overrides: Sequence[Override], options: Groups) -> tuple[DictConfig, list[str]]:
    """A configuration with overrides applied as Hydra does, and the errors of those that it refuses."""
    cfg, refused = copy.copy(cfg), []
    for override in overrides:
        changed = copy.copy(cfg)  # of a refused override nothing is kept
        try:
            ConfigLoaderImpl._apply_overrides_to_config([override], changed)  # pyright: ignore[reportPrivateUsage]
            cfg = changed
        except HydraException as error:
            refused.append((override, error))
    # after the others, which may have changed a _target_ and with it the names it takes
    return cfg, [_refused(cfg, override, error, options) for override, error in refused]


def _refused(cfg: DictConfig, override: Override, error: Exception, options: Groups) -> str:
    """The error of an override that Hydra refuses; a key that is to be added is added, so that its value is checked."""
    text, key = override.input_line or "", override.key_or_group
    path, tree = key.split("."), plain(cfg)[0]
    parent = at(tree, path[:-1])
    if isinstance(parent, dict) and path[-1] in parent:
        reason = one_line(error if error.__cause__ is None else error.__cause__)
        return f"{text}: {reason}" + (f", write +{text} to add it" if isinstance(override.value(), dict) else "")
    names = legal_names(tree, path[:-1], options)
    is_unknown = path[-1] not in names if names is not None else bool(meant_key(tree, path, options))
    if override.is_delete() or not isinstance(parent, dict) or is_unknown:
        return unknown_key(tree, path, options)
    OmegaConf.update(cfg, key, override.value(), merge=True, force_add=True)
    return f"{key} is not set in conf/: add it with +{key}=..."

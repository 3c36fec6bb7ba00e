"""The overrides of a command line: every fault of them at once, and what they may change on a resume."""

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lockstep.config import (
    CONF,
    ConfigError,
    Source,
    at,
    check_tree,
    checked,
    composed,
    leaves,
    legal_names,
    near,
    one_line,
    plain,
    question,
    shown,
    to_tree,
    unknown_key,
)
from lockstep.schema import FALLBACK, Config, Data, fields, section

# what a resume may change, sections with all below them; everything else is the mathematics of the run, and frozen
FREE_ON_RESUME = (
    # where it is computed, and how fast
    "compile",
    "eval_batch_size",
    "data.cache",
    "data.copy_remove",
    "data.copy_to",
    "data.download",
    "data.memory",
    "data.num_workers",
    "strategy.bucket_size_mib",
    "strategy.interface",
    "strategy.name",
    "strategy.process_group_backend",
    "strategy.timeout_s",
    "strategy.variables",
    "trainer.deterministic",
    "trainer.devices",
    "trainer.loads",
    "trainer.memory_format",
    "trainer.num_nodes",
    "trainer.process_limit",
    # how long
    "trainer.max_epochs",
    "trainer.max_time_s",
    # what is watched and told
    "flip_test",
    "logger",
    "name",
    "notify",
    "silent",
    "trainer.log_every_n_steps",
    "trainer.profiler",
    # of the command
    "cluster",
    "dry_run",
    "launcher",
    "resume",
    "search",
    "sweep",
)
# callbacks that may come, go and change on a resume: they only look on, or end a training
FREE_CALLBACKS = (
    "lightning.pytorch.callbacks.DeviceStatsMonitor",
    "lightning.pytorch.callbacks.LearningRateMonitor",
    "lightning.pytorch.callbacks.Timer",
    "lockstep.callbacks.curves.Curves",
    "lockstep.callbacks.pictures.Pictures",
)
CHECKPOINT = "lightning.pytorch.callbacks.ModelCheckpoint"  # free where it does not choose the best weights
# where a run is trained is a matter of the command, not of the run
OF_THE_COMMAND = ("cluster", "dry_run")
# each environment of a benchmark says these
SET_BY_ENVIRONMENTS = (
    "strategy",
    "strategy.name",
    "scale_with_workers",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.loads",
    "trainer.max_time_s",
)
EVERYWHERE = ("experiment", "debug")  # groups whose options set keys of any section
OF_THE_WHOLE = (
    "launcher",
    "sweep",
    "search",
    "notify",
    "cluster",
    "dry_run",
    "silent",
)  # sections that cannot differ between the jobs of a sweep
MAX_COMBINATIONS = 100  # of a sweep that are all tried: about 10 ms each (2-core CPU, 2026-11-21)
Groups = Mapping[str, Sequence[str]]
Choice = tuple[DictConfig | None, list[str]]
REFUSALS = (HydraException, OmegaConfBaseException, YAMLError, ValueError)  # by Hydra, of a choice or a file


class Plan(NamedTuple):
    """What a command line asks for: how many jobs, the configuration of the first, and all data they read."""

    num_jobs: int
    config: Config
    data: list[Data]


class Interval(NamedTuple):
    """Numbers a search draws from, both ends included; whole ones where both ends are, in steps of `step` if any."""

    low: float
    high: float
    step: float | None
    is_log: bool


Space = dict[str, Interval | tuple[str, ...]]  # by key: an interval, or what to choose from, as it is typed


def groups(*folders: Path | None) -> dict[str, list[str]]:
    """Options of every configuration group below the folders; Hydra knows more of its own groups, hydra/..."""
    found: dict[str, set[str]] = {}
    for folder in filter(None, folders):
        for file in folder.rglob("*.yaml"):
            group = file.parent.relative_to(folder).as_posix()
            if group != "." and not group.startswith("hydra/"):
                found.setdefault(group, set()).add(file.stem)
    return {group: sorted(options) for group, options in sorted(found.items())}


def check(
    overrides: Sequence[str],
    *,
    conf: Path = CONF,
    config_name: str = "config",
    added: Path | None = None,
    is_multirun: bool,
    is_benchmark: bool = False,
) -> Plan:
    """What these overrides ask for. Raises ConfigError with all their faults; of a sweep, of every value.

    `conf` is the folder of the primary configuration, `added` one that adds to it (Hydra's --config-dir).
    """
    for folder in (conf, added):
        if folder is not None and not folder.is_dir():
            raise ConfigError([f"there is no folder {folder}: correct the path of the configuration"])
    source, options = Source(conf, config_name, added), groups(conf, added)
    if config_name not in {file.stem for file in [*conf.glob("*.yaml"), *(added.glob("*.yaml") if added else ())]}:
        raise ConfigError([f"there is no {config_name}.yaml in {conf}: correct --config-name"])
    faults: list[str] = []
    values: list[list[str]] = []
    configs: list[Config] = []
    for text in overrides:
        try:
            override = _parsed(text)
            elsewhere = _elsewhere(override, is_benchmark=is_benchmark)
            if elsewhere:
                faults.append(elsewhere)
            elif override.is_sweep_override() and not is_multirun:
                cure = "give one" if is_benchmark else "add -m to sweep over them"
                faults.append(f"{text} lists several values: {cure}, or quote a value with commas")
            elif override.is_sweep_override() and override.key_or_group.partition(".")[0] in OF_THE_WHOLE:
                faults.append(f"{text} lists several values, but it is of the whole sweep: give one")
            else:
                values.append(_values(override, options, partial(_is_drawn, overrides, options, source)))
        except HydraException:
            faults.append(f"{text!r} cannot be read: write key=value, no spaces around =, special characters in quotes")
        except ConfigError as error:
            faults += error.faults

    @cache
    def choose(choices: tuple[str, ...]) -> Choice:
        return _chosen(choices, source)

    for texts in _combinations(values):
        config, found = _job([_parsed(text) for text in texts], choose, options)
        faults += found
        if config is not None:
            configs.append(config)
            faults += _sweep_faults(config, configs[0], is_multirun=is_multirun)
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))
    data: list[Data] = []
    for config in configs:
        if config.data not in data:
            data.append(config.data)
    return Plan(math.prod(map(len, values)), configs[0], data)


def hydra_value(key: str, texts: Sequence[str], source: Source) -> str | None:
    """What Hydra will read at a key of its own, None where these overrides leave it to conf/config.yaml.

    Values that differ between the jobs of a sweep are left out. Raises ConfigError where it cannot be told.
    """
    found = [_parsed(text) for text in texts]
    may_say = any(each.is_hydra_override() or each.key_or_group in EVERYWHERE for each in found)
    if not may_say and source == Source():
        return None  # to compose once more would take 0.1 s
    kept = [each.input_line or "" for each in found if not each.is_sweep_override()]
    try:
        value = OmegaConf.select(composed(kept, source, with_hydra=True), key)
    except REFUSALS as error:
        raise ConfigError([f"{key}: {one_line(error)}"]) from error
    return None if value in (None, ".") else str(value)


def _sweep_faults(config: Config, first: Config, *, is_multirun: bool) -> list[str]:
    apart = [name for name in OF_THE_WHOLE if getattr(config, name) != getattr(first, name)]
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
    """The fault of an override that belongs to another command, or to the environments of a benchmark."""
    key, text = override.key_or_group, override.input_line
    if not is_benchmark:
        is_foreign = key.partition(".")[0] == "benchmark"
        return f"{text}: only `lockstep benchmark` reads benchmark: leave it out" if is_foreign else None
    if key == "resume":
        return f"{text}: a benchmark starts anew: leave it out"
    if key.partition(".")[0] in OF_THE_COMMAND:
        return f"{text}: a benchmark measures the machine it is started on: leave it out"
    if key in SET_BY_ENVIRONMENTS:
        return f"{text}: every environment of a benchmark says it itself: see benchmark.environments and budget_s"
    return None


@cache
def _parsed(text: str) -> Override:
    """One override as Hydra reads it. Raises HydraException for what Hydra cannot read."""
    if text.startswith("="):
        raise OverrideParseException(text, "no key")  # to Hydra the empty text is a key
    return OverridesParser.create().parse_override(text)


# -- sweeps ------------------------------------------------------------------------------------------------------------


def _is_drawn(overrides: Sequence[str], options: Groups, source: Source) -> bool:
    """Whether a search draws the values of a sweep: typed, or chosen by an experiment."""
    chosen = [text for text in overrides if text.partition("=")[0] in options or text.startswith("hydra/")]
    try:
        cfg = composed([text for text in chosen if not _parsed(text).is_sweep_override()], source, with_hydra=True)
    except REFUSALS:
        return True  # what is wrong with them is told elsewhere
    return not cfg.hydra.sweeper._target_.endswith(".BasicSweeper")


def _values(override: Override, options: Groups, is_drawn: Callable[[], bool]) -> list[str]:
    """An override for every value of a sweep; the ends of a range or interval stand for what lies between."""
    text, value, name = override.input_line or "", override.value(), override.get_key_element()
    if not override.is_sweep_override():
        return [text]
    if isinstance(value, IntervalSweep):
        if (value.start or 0) >= (value.end or 0):
            raise ConfigError([f"{text} ends before it begins: write the smaller number first"])
        if not is_drawn():
            ends = f"{override.key_or_group}={value.start},...,{value.end}"
            raise ConfigError([f"{text} needs a search that draws values (search=tpe): add one, or list them, {ends}"])
        found = [value.start, value.end]
    elif isinstance(value, Glob):
        found = value.filter(list(options.get(override.key_or_group, ())))
    elif isinstance(value, RangeSweep):
        found = _ends(value)
    else:
        found = list(override.sweep_string_iterator())
    if not found:
        cure = f"choose from {', '.join(options[name])}" if name in options else "widen it"
        raise ConfigError([f"{text} stands for no value: {cure}"])
    return [f"{name}={value}" for value in found]


def searched(overrides: Sequence[str], options_of: Callable[[str], Sequence[str]]) -> tuple[list[str], Space]:
    """The overrides with one value, and what a search draws the others from. Raises ConfigError.

    `options_of` has the options of a configuration group.
    """
    fixed: list[str] = []
    space: Space = {}
    for override in map(_parsed, overrides):
        key, value = override.get_key_element(), override.value()
        if not override.is_sweep_override():
            fixed.append(override.input_line or "")
        elif isinstance(value, IntervalSweep):
            space[key] = Interval(value.start or 0, value.end or 0, None, "log" in value.tags)
        elif isinstance(value, RangeSweep):
            low, high = sorted(_ends(value))
            space[key] = Interval(low, high, abs(value.step), False)
        elif isinstance(value, Glob):
            space[key] = tuple(value.filter(list(options_of(override.key_or_group))))
        else:
            space[key] = tuple(override.sweep_string_iterator())
    if not space:
        raise ConfigError(["search=... needs something to draw: e.g. 'optimizer.lr=tag(log, interval(0.01, 1))'"])
    return fixed, space


def _ends(sweep: RangeSweep) -> list[Any]:
    start, stop = sweep.start or 0, sweep.stop or 0
    count = math.ceil((stop - start) / sweep.step) if sweep.step else 0
    return [start, start + (count - 1) * sweep.step] if count > 0 else []


def _combinations(values: Sequence[Sequence[str]]) -> Iterable[Sequence[str]]:
    """All jobs of a sweep; of a large one the first, and every other value alone in its place."""
    if math.prod(map(len, values)) <= MAX_COMBINATIONS:
        yield from itertools.product(*values)
        return
    first = [texts[0] for texts in values]
    yield first
    for position, texts in enumerate(values):
        for text in texts[1:]:
            yield [*first[:position], text, *first[position + 1 :]]


# -- one job -----------------------------------------------------------------------------------------------------------


def _job(
    job: Sequence[Override], choose: Callable[[tuple[str, ...]], Choice], options: Groups
) -> tuple[Config | None, list[str]]:
    """One configuration, or its faults: options are Hydra's to choose, values are put in here, one by one."""
    choices = [override for override in job if override.key_or_group in options or override.is_hydra_override()]
    values = [override for override in job if override not in choices]
    wrong = {} if _searches_elsewhere(job) else {o.input_line: f for o in choices if (f := _option_fault(o, options))}
    cfg, refused = choose(tuple(o.input_line or "" for o in choices if o.input_line not in wrong))
    faults = [*wrong.values(), *refused]
    if cfg is None:
        return None, faults
    cfg = copy.deepcopy(cfg)
    faults += _put_in(cfg, values, options)
    try:
        return checked(cfg, options), faults
    except ConfigError as error:
        return None, [*faults, *error.faults]


def _searches_elsewhere(job: Sequence[Override]) -> bool:
    """Whether there may be options that only Hydra finds."""
    return any(override.key_or_group == "hydra.searchpath" for override in job)


def _option_fault(override: Override, options: Groups) -> str | None:
    key, value = override.key_or_group, override.value()
    if key not in options or override.is_delete():
        return None
    wrong = [option for option in (value if isinstance(value, list) else [value]) if option not in options[key]]
    return f"{override.input_line} is no option{_choice(str(wrong[0]), options[key])}" if wrong else None


def _chosen(choices: Sequence[str], source: Source) -> Choice:
    """The configuration of some choices, and the faults of those that Hydra refuses."""
    try:
        return composed(choices, source), []
    except REFUSALS:
        pass
    try:
        composed([], source)
    except REFUSALS as error:
        return None, [one_line(error)]
    faults, good = [], []
    for text in choices:
        try:
            composed([text], source)
            good.append(text)
        except REFUSALS as error:
            faults.append(_refusal(text, error, source))
    try:
        return composed(good, source), faults
    except REFUSALS as error:
        return None, [*faults, one_line(error)]


def _refusal(text: str, error: Exception, source: Source) -> str:
    """Why Hydra refuses a choice, and what to write instead."""
    override = _parsed(text)
    key = override.key_or_group
    if isinstance(error, MissingConfigException) and error.options and error.missing_cfg_file:
        missing = error.missing_cfg_file
        return f"{text}: there is no {missing}" + _choice(missing.rpartition("/")[2], error.options)
    if override.package is not None:
        return f"{text}: write {key}={override.get_value_element_as_str()}, without @"
    if key.startswith("hydra."):
        hydra = OmegaConf.to_container(composed([], source, with_hydra=True).hydra, resolve=False)
        meant = near(key, dict(leaves(hydra, "hydra")))
        if key not in meant:
            return f"unknown key {key}" + question(meant, "see --hydra-help")
    for other, reason in ((text.lstrip("+"), "is among the defaults"), (f"+{text}", "is not among the defaults")):
        if other != text and _is_accepted(other, source):
            return f"{text}: {key} {reason}, write {other}"
    return f"{text}: {one_line(error)}"


def _choice(option: str, options: Sequence[str]) -> str:
    meant = near(option, options)
    return (f", did you mean {meant[0]}? Choose" if meant else ": choose") + f" from {', '.join(options)}"


def _is_accepted(text: str, source: Source) -> bool:
    try:
        composed([text], source)
    except REFUSALS:
        return False
    return True


def _put_in(cfg: DictConfig, overrides: Sequence[Override], options: Groups) -> list[str]:
    """Put values into a configuration, as Hydra would; the faults are of those it would refuse."""
    faults: list[str] = []
    unset: list[Override] = []
    for override in overrides:
        text, key, value = override.input_line or "", override.key_or_group, override.value()
        parent, _, last = key.rpartition(".")
        node = OmegaConf.select(cfg, parent) if parent else cfg
        there: Any = OmegaConf.to_container(node, resolve=False) if OmegaConf.is_dict(node) else {}
        is_set, current = last in there, there.get(last)
        is_added = override.is_add() or override.is_force_add()
        if not is_set and not is_added:
            unset.append(override)
        elif override.is_delete() and current is None:
            faults.append(f"{text}: {key} is null already, leave {text} out")
        elif override.is_delete() and value not in (None, current):
            faults.append(f"{text}: {key} is {shown(current)}, write ~{key}")
        elif override.is_delete():
            with open_dict(node):
                del node[last]
        elif override.is_add() and current is not None and not isinstance(value, dict | list):
            faults.append(f"{text}: {key} has a value already, write {text[1:]}")
        elif isinstance(current, dict) and isinstance(value, dict) and not is_added and value.keys() - current.keys():
            faults.append(f"{text}: {key} has no {', '.join(sorted(value.keys() - current.keys()))}, write +{text}")
        else:
            faults += _updated(cfg, override)
    # after the others, which may have changed a _target_ and with it the names it takes
    for override in unset:
        key = override.key_or_group
        path, tree = key.split("."), plain(cfg)[0]
        names = legal_names(tree, path[:-1], options)
        if override.is_delete() or (names is not None and path[-1] not in names):
            faults.append(unknown_key(tree, path, options))
        else:
            faults.append(f"{key} is not set in conf/: add it with +{key}=...")
            faults += _updated(cfg, override)
    return faults


def _updated(cfg: DictConfig, override: Override) -> list[str]:
    try:
        OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True, force_add=True)
    except OmegaConfBaseException as error:
        return [f"{override.input_line}: {one_line(error)}"]
    return []


# -- a resumed run -----------------------------------------------------------------------------------------------------


def resumed_config(saved: Config, cfg: DictConfig, overrides: Sequence[str]) -> Config:
    """The saved configuration of a run with the overrides of this command line on top.

    Raises ConfigError for settings that would make it another run, and for all else that is wrong then.
    """
    tree, typed = to_tree(saved), plain(cfg)[0]
    for override in map(_parsed, overrides):
        key = override.key_or_group
        if key in EVERYWHERE:
            tree = copy.deepcopy(typed)
        elif not override.is_hydra_override():
            _copy(typed, tree, key.split("."))
    tree |= {key: copy.deepcopy(typed[key]) for key in OF_THE_COMMAND if key in typed}
    faults = _changes(to_tree(saved), tree)
    try:
        config = check_tree({**tree, "resume": None})
    except ConfigError as error:
        raise ConfigError([*faults, *error.faults]) from error
    if faults:
        raise ConfigError(faults)
    return config


def _copy(source: dict[str, Any], target: dict[str, Any], path: Sequence[str]) -> None:
    """Make the value at a path that of the source, or remove it where the source has none."""
    *parents, last = path
    for part in parents:
        if not isinstance(target.get(part), dict):
            target[part] = {}
        target = target[part]
    parent = at(source, parents)
    if isinstance(parent, dict) and last in parent:
        target[last] = copy.deepcopy(parent[last])
    else:
        target.pop(last, None)


def _changes(saved: dict[str, Any], tree: dict[str, Any]) -> list[str]:
    """A fault for every frozen key that has another value than in the saved run."""
    before, after = (dict(_said(part)) for part in (saved, tree))
    changed = [
        key
        for key in {**before, **after}
        if before.get(key) != after.get(key) and not (is_free_on_resume(key, saved) and is_free_on_resume(key, tree))
    ]
    # of a section with another target no other key is told
    replaced = tuple(key.removesuffix("_target_") for key in changed if key.endswith("._target_"))
    return [
        f"{key}={shown(after.get(key))} cannot change on resume, this run has {shown(before.get(key))}: "
        "leave it out, or start a new run"
        for key in changed
        if not key.startswith(replaced) or key.removesuffix("_target_") in replaced
    ]


def _said(tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a configuration says: an empty section says nothing, nor does `_partial_: false`, which is so without it."""
    for key, value in leaves(tree, ""):
        if value != {} and not (key.endswith("._partial_") and value is False):
            yield key, value


def is_free_on_resume(key: str, tree: dict[str, Any]) -> bool:
    """Whether a resume may change the value at `key` of a configuration."""
    path = key.split(".")
    if path[0] == "callbacks":
        callback = at(tree, path[:2])
        target = callback.get("_target_") if isinstance(callback, dict) else None
        return target in (None, *FREE_CALLBACKS) or (target == CHECKPOINT and callback.get("monitor") is None)
    if path[0] in FALLBACK and path[-1] not in fields(section(tree, path[:1]) or Config):
        return False  # a key of the user's own that has the name of one of ours
    return any(".".join(path[:depth]) in FREE_ON_RESUME for depth in range(1, len(path) + 1))

"""The overrides of a command line: every fault of them at once, and what they may change on a resume."""

import copy
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
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
    legal_names,
    one_line,
    question,
    to_tree,
    unknown_key,
)
from lockstep.schema import Config

# a resumed run must go on with the same mathematics
FROZEN_ON_RESUME = (
    "data",
    "model",
    "optimizer",
    "scheduler",
    "augment",
    "seed",
    "label_smoothing",
    "global_batch_size",
    "scale_with_workers",
    "experiment",
    "debug",
    "trainer.accumulate_grad_batches",
    "trainer.limit_train_batches",
    "trainer.overfit_batches",
)
MAX_COMBINATIONS = 100  # of a sweep that are all tried: about 10 ms each (2-core CPU, 2026-11-21)
Groups = Mapping[str, Sequence[str]]


def groups(*folders: Path | None) -> dict[str, list[str]]:
    """Options of every configuration group below the folders."""
    found: dict[str, set[str]] = {}
    for conf in folders:
        for file in sorted(conf.rglob("*.yaml")) if conf is not None else ():
            if file.parent != conf:
                found.setdefault(file.parent.relative_to(conf).as_posix(), set()).add(file.stem)
    return {group: sorted(options) for group, options in sorted(found.items())}


def check(
    overrides: Sequence[str],
    *,
    conf: Path = CONF,
    config_name: str = "config",
    added: Path | None = None,
    is_multirun: bool,
) -> None:
    """Raise ConfigError with all faults of these overrides; of a sweep, those of every value.

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
    for text in overrides:
        try:
            override = _parsed(text)
            if override.is_sweep_override() and not is_multirun:
                faults.append(f"{text} lists several values: add -m to sweep over them, or quote a value with commas")
            else:
                values.append(_values(override, options, source))
        except HydraException as error:
            faults.append(f"{text!r} is no override, {one_line(error)}: write key=value, and quote special characters")
        except ConfigError as error:
            faults += error.faults
    choose = cache(partial(_chosen, options=options, source=source))
    for texts in _combinations(values):
        faults += _faults([_parsed(text) for text in texts], choose, options)
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))


@cache
def _parsed(text: str) -> Override:
    return OverridesParser.create().parse_override(text)


# -- sweeps ------------------------------------------------------------------------------------------------------------


def _values(override: Override, options: Groups, source: Source) -> list[str]:
    """An override for every value of a sweep; the ends of a range or interval stand for what lies between."""
    text, value, name = override.input_line or "", override.value(), override.get_key_element()
    if not override.is_sweep_override():
        return [text]
    if isinstance(value, IntervalSweep):
        with_hydra = composed([], source, with_hydra=True)
        if with_hydra.hydra.sweeper._target_.endswith(".BasicSweeper"):
            ends = f"{override.key_or_group}={value.start},...,{value.end}"
            raise ConfigError([f"{text} needs a sweeper that draws values (hydra/sweeper=...): list them, {ends}"])
        found = [value.start, value.end]
    elif isinstance(value, Glob):
        found = value.filter(list(options.get(override.key_or_group, ())))
    elif isinstance(value, RangeSweep):
        found = _ends(value)
    else:
        found = list(override.sweep_string_iterator())
    if not found:
        there = question([], f"choose from {', '.join(options.get(name, ()))}" if name in options else "widen it")
        raise ConfigError([f"{text} stands for no value{there}"])
    return [f"{name}={value}" for value in found]


def _ends(sweep: RangeSweep) -> list[Any]:
    assert sweep.start is not None and sweep.stop is not None
    count = math.ceil((sweep.stop - sweep.start) / sweep.step) if sweep.step else 0
    return [sweep.start, sweep.start + (count - 1) * sweep.step] if count > 0 else []


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

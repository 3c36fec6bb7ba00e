"""The values that a sweep goes through, and the space that a search draws from."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep

from lockstep.config.compose import Source, composed
from lockstep.config.faults import ConfigError
from lockstep.config.options import REFUSALS, parsed
from lockstep.config.targets import Groups

MAX_CHECKED = 50  # jobs of a sweep that are checked before it starts; the others are when they begin


class Interval(NamedTuple):
    """Numbers a search draws from, both ends included; whole ones where both ends are, in steps of `step` if any."""

    low: float
    high: float
    step: float | None
    is_log: bool


Space = dict[str, Interval | tuple[str, ...]]  # by key: an interval, or what to choose from, as it is typed


def is_drawn(overrides: Sequence[str], options: Groups, source: Source) -> bool:
    """Whether a search draws the values of a sweep: typed, or chosen by an experiment."""
    chosen = [text for text in overrides if text.partition("=")[0] in options or text.startswith("hydra/")]
    try:
        cfg = composed([text for text in chosen if not parsed(text).is_sweep_override()], source, with_hydra=True)
    except REFUSALS:
        return True  # what is wrong with them is told elsewhere
    return not cfg.hydra.sweeper._target_.endswith(".BasicSweeper")


def values_of(override: Override, options: Groups, is_drawn: Callable[[], bool]) -> list[str]:
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
        values = [value.start, value.end]
    elif isinstance(value, Glob):
        values = value.filter(list(options.get(override.key_or_group, ())))
    elif isinstance(value, RangeSweep):
        values = _ends(value)
    else:
        values = list(override.sweep_string_iterator())
    if not values:
        cure = f"choose from {', '.join(options[name])}" if name in options else "widen it"
        raise ConfigError([f"{text} stands for no value: {cure}"])
    return [f"{name}={value}" for value in values]


def searched(overrides: Sequence[str], options_of: Callable[[str], Sequence[str]]) -> tuple[list[str], Space]:
    """The overrides with one value, and what a search draws the others from. Raises ConfigError.

    `options_of` has the options of a configuration group.
    """
    fixed: list[str] = []
    space: Space = {}
    for override in map(parsed, overrides):
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


def combinations(values: Sequence[Sequence[str]]) -> Iterable[Sequence[str]]:
    """The first jobs of a sweep."""
    return itertools.islice(itertools.product(*values), MAX_CHECKED)

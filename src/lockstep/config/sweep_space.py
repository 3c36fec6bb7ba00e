"""The values that a sweep goes through, and the space that a search draws from."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep

from lockstep.config.compose import Source, composed
from lockstep.config.errors import ConfigError
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
    """An override for every value of a sweep; the ends of a range or interval stand for what lies between.

    Raises ConfigError where there is no value, or an interval and no search that draws from it.
    """
    if not override.is_sweep_override():
        return [override.input_line or ""]
    drawn = _drawn(override, lambda group: options.get(group, ()))
    if isinstance(override.value(), IntervalSweep) and not is_drawn():
        fix = "needs a search that draws values (search=tpe): add one, or list them"
        raise ConfigError([f"{override.input_line} {fix}, {override.key_or_group}={drawn[0]},...,{drawn[1]}"])
    values = drawn[:2] if isinstance(drawn, Interval) else drawn
    return [f"{override.get_key_element()}={value}" for value in values]


def searched(overrides: Sequence[str], options_of: Callable[[str], Sequence[str]]) -> tuple[list[str], Space]:
    """The overrides with one value, and what a search draws the others from. Raises ConfigError.

    `options_of` has the options of a configuration group.
    """
    typed = [parsed(text) for text in overrides]
    fixed = [override.input_line or "" for override in typed if not override.is_sweep_override()]
    space = {o.get_key_element(): _drawn(o, options_of) for o in typed if o.is_sweep_override()}
    if not space:
        raise ConfigError(["search=... needs something to draw: e.g. 'optimizer.lr=tag(log, interval(0.01, 1))'"])
    return fixed, space


def _drawn(override: Override, options_of: Callable[[str], Sequence[str]]) -> Interval | tuple[str, ...]:
    """The values of a sweep or search for one key. Raises ConfigError where there is none."""
    text, value = override.input_line, override.value()
    if isinstance(value, IntervalSweep):
        drawn = Interval(value.start or 0, value.end or 0, None, "log" in value.tags)
        if drawn.low >= drawn.high:
            raise ConfigError([f"{text} ends before it begins: write the smaller number first"])
        return drawn
    if isinstance(value, RangeSweep):
        start, stop = value.start or 0, value.stop or 0
        count = math.ceil((stop - start) / value.step) if value.step else 0
        if count > 0:
            low, high = sorted((start, start + (count - 1) * value.step))
            return Interval(low, high, abs(value.step), False)
        raise ConfigError([f"{text} stands for no value: widen it"])
    if not isinstance(value, Glob):
        return tuple(override.sweep_string_iterator())
    names = list(options_of(override.key_or_group))
    if found := tuple(value.filter(names)):
        return found
    raise ConfigError([f"{text} stands for no value: choose from {', '.join(names)}"])


def combinations(values: Sequence[Sequence[str]]) -> Iterable[Sequence[str]]:
    """The first jobs of a sweep."""
    return itertools.islice(itertools.product(*values), MAX_CHECKED)

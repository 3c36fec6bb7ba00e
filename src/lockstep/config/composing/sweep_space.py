"""Lists the values of a sweep, and the space that a search samples."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep

from lockstep.config.composing.compose import parse_override
from lockstep.config.errors import Error, Errors, config_error
from lockstep.config.schema.legal_keys import Groups


class Interval(NamedTuple):
    """Numbers to sample, with both ends included.

    They are integers if both ends are. If `step` is set, they are in steps of `step`.
    """

    low: float
    high: float
    step: float | None
    is_log: bool


# Maps a key to an interval, or to choices as they are typed.
Space = dict[str, Interval | tuple[str, ...]]


def values_of(override: Override, options: Groups) -> list[str]:
    """Return an override for every value of a sweep, or those at the ends of an interval.

    Raises ConfigError if there is no value.
    """
    if not override.is_sweep_override():
        return [override.input_line or ""]
    values = _values(override, options)
    if isinstance(override.value(), RangeSweep):
        values = tuple(override.sweep_string_iterator())
    points = values[:2] if isinstance(values, Interval) else values
    return [f"{override.get_key_element()}={value}" for value in points]


def search_errors(overrides: Iterable[tuple[Override, Sequence[str]]]) -> Errors:
    """Yield the errors of intervals without a search, from overrides with their values."""
    for override, lines in overrides:
        if isinstance(override.value(), IntervalSweep):
            low, high = (line.partition("=")[2] for line in lines)
            yield Error(
                "conflict",
                override.input_line or "",
                "needs a search that draws values (search=tpe)",
                f"add one, or list them, {override.key_or_group}={low},...,{high}",
            )


def separate_space(overrides: Sequence[str], options: Groups) -> tuple[list[str], Space]:
    """Return the overrides with one value, and the space of the other overrides.

    Raises ConfigError if there is no space, or if it contains data.fold.
    """
    parsed_overrides = [parse_override(line) for line in overrides]
    fixed = [o.input_line or "" for o in parsed_overrides if not o.is_sweep_override()]
    swept = [o for o in parsed_overrides if o.is_sweep_override()]
    space = {override.get_key_element(): _values(override, options) for override in swept}
    if not space:
        raise config_error(
            "missing",
            "search=...",
            "needs an interval to search",
            "e.g. 'optimizer.lr=tag(log, interval(0.01, 1))'",
        )
    if folds := [key for key in space if key.lstrip("+") == "data.fold"]:
        raise config_error(
            "conflict",
            folds[0],
            "in a search would choose the easiest fold",
            "give one, or sweep without search",
        )
    return fixed, space


def _values(override: Override, options: Groups) -> Interval | tuple[str, ...]:
    line, value = override.input_line or "", override.value()
    if isinstance(value, IntervalSweep):
        interval = Interval(value.start or 0, value.end or 0, None, "log" in value.tags)
        if interval.low >= interval.high:
            raise config_error(
                "value", line, "ends before it begins", "write the smaller number first"
            )
        return interval
    if isinstance(value, RangeSweep):
        start, stop = value.start or 0, value.stop or 0
        count = math.ceil((stop - start) / value.step) if value.step else 0
        if count <= 0:
            raise config_error("value", line, "has no value", "widen it")
        low, high = sorted((start, start + (count - 1) * value.step))
        return Interval(low, high, abs(value.step), False)
    if not isinstance(value, Glob):
        return tuple(override.sweep_string_iterator())
    group_options = list(options.get(override.key_or_group, ()))
    matches = tuple(value.filter(group_options))
    if not matches:
        raise config_error(
            "unknown", line, "matches no option", f"choose from {', '.join(group_options)}"
        )
    return matches


def combinations(overrides: Iterable[tuple[Override, Sequence[str]]]) -> Iterable[Sequence[str]]:
    """Return the overrides of every job, from overrides with their values.

    The jobs are in the order of Hydra's own sweeps. Of several overrides of a key, the last one
    counts.
    """
    values = {override.get_key_element(): lines for override, lines in overrides}
    return itertools.product(*values.values())

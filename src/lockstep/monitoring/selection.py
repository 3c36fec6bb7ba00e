"""The runs that a command shows: those below a folder that match the given terms and states."""

import contextlib
import json
import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from lockstep.monitoring import cells
from lockstep.runs.discovery import STATES, DiscoveredRun, Watched
from lockstep.runs.files import read_text
from lockstep.runs.naming import shown
from lockstep.system.redaction import redacted

DEFAULT_ROOT = "outputs"
COLUMNS = ("state", "run", "best", "overrides", "epoch", "s/epoch", "started")
NOTES = ("tag", "tags", "note")  # which no run may have yet
USUAL = (*COLUMNS, *NOTES)
OTHER_NAMES = {"s/epoch": "epoch_s", "tag": "tags"}  # of facts
CONDITION = re.compile(r"([^=!<>]+)(!=|<=|>=|=|<|>)(.*)")
OPERATORS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True)
class Listed:
    """A run and its facts; `since` is the start of its last session, or else when it was created."""

    discovered: DiscoveredRun
    facts: dict[str, Any]
    since: float

    def value(self, key: str) -> Any:
        """Return a fact, a metric or a setting by its key, None if the run has none. Settings are texts.

        The configuration is parsed, which takes milliseconds, only if it has the section and the command line has not
        the setting.
        """
        if key in self.known or key in USUAL:
            return self.known.get(key)
        return self.settings.get(key) if f"\n{key.partition('.')[0]}:" in f"\n{self._config}" else None

    @cached_property
    def known(self) -> dict[str, Any]:
        """The values that need no configuration."""
        typed = dict(text.lstrip("+").split("=", 1) for text in self.facts["overrides"] if "=" in text)
        facts = typed | self.facts["metrics"] | self.facts | {"started": self.since or None}
        return facts | {name: facts[fact] for name, fact in OTHER_NAMES.items() if fact in facts}

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the configuration, without secrets; empty if it cannot be read."""
        return _settings(self._config)

    @cached_property
    def _config(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            return read_text(self.discovered.folder.config)
        return ""


@cache
def _settings(text: str) -> dict[str, str]:
    from yaml import YAMLError  # which a listing without settings does not need

    from lockstep.system.trees import from_yaml, leaves

    try:
        tree = from_yaml(text)
    except (ValueError, YAMLError):
        return {}
    settings = {key: redacted(value, key) for key, value in leaves(tree, "") if value not in (None, {})}
    return {
        key: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
        for key, value in settings.items()
    }


def order(value: Any) -> tuple[bool, float, str]:
    """Return the key by which values are compared: numbers first, texts without case and with - for blanks."""
    with contextlib.suppress(TypeError, ValueError):
        if math.isfinite(number := float(value)):
            return False, number, ""
    return True, 0.0, str(value).casefold().replace(" ", "-")


@dataclass(frozen=True)
class Selection:
    """The root of the search, the terms that must all match, and the states, of which none means all.

    For a removal, KEY=VALUE is a text as in earlier versions, where a setting that nobody typed did not match.
    """

    root: Path
    terms: Sequence[str]
    states: Sequence[str]
    is_removal: bool = False

    def listed(self, watched: Watched) -> list[Listed]:
        """List the matching runs, the newest first."""
        return [run for run in _all(watched) if self._matches(run)]

    def check(self, watched: Watched, *keys: str) -> None:
        """Raise ValueError for one of these keys, or one in a condition, that no run has."""
        runs = _all(watched)
        conditions = [found.groups() for found in map(CONDITION.fullmatch, self.terms) if found]
        for key in (*keys, *(key for key, sign, _ in conditions if sign != "=")):  # with = it may be any text
            if runs and key not in USUAL and all(run.value(key) is None for run in runs):
                known = {*USUAL, *runs[0].settings}.union(*(run.known for run in runs))
                same = sorted(name for name in known if re.split(r"[./]", name)[-1] == key)
                near = " or ".join(same or get_close_matches(key, known))
                hint = f"did you mean {near}?" if near else f"choose from {', '.join(USUAL)}, settings and metrics."
                raise ValueError(f"no run below {shown(self.root)} has {key}: {hint}")

    def _matches(self, run: Listed) -> bool:
        facts = run.facts
        if self.states and facts["state"] not in self.states:
            return False
        texts = [facts["run"], facts.get("name", ""), facts.get("device", ""), *facts["overrides"], facts["state"]]
        text = " ".join([*texts, f"state={facts['state'].replace(' ', '-')}"]).casefold()
        return all(term.casefold() in text or self._holds(term, run) for term in self.terms)

    def _holds(self, term: str, run: Listed) -> bool:
        """Compare a value, of tags any one; False for a run without the key. A number is not compared with a text."""
        if (condition := CONDITION.fullmatch(term)) is None:
            return False
        key, sign, wanted = condition.groups()
        if self.is_removal and sign == "=" and key not in NOTES:
            return False
        found, right = run.value(key), order(wanted)
        if found is None:
            return False
        values = found if isinstance(found, list) else [cells.moment(found) if key == "started" else found]
        lefts = [order(value) for value in values]
        if sign == "!=":
            return right not in lefts
        return any(left[0] == right[0] and OPERATORS[sign](left, right) for left in lefts)


def _all(watched: Watched) -> list[Listed]:
    facts = watched.look()
    by_id = watched.runs()  # may search again: a run may have been removed since
    discovered = [(by_id[each["id"]], each) for each in facts if each["id"] in by_id]
    runs = [Listed(run, each, _since(run, each)) for run, each in discovered]
    return sorted(runs, key=lambda run: (run.since, run.discovered.name), reverse=True)


def selection(folder: str, filter_text: str, state_text: str) -> Selection:
    """Parse the arguments of a command; `state_text` is a list like `failed,no-signal`.

    Raises ValueError for an unknown state, FileNotFoundError for a missing folder other than the default one.
    """
    root = Path(folder)
    if folder != DEFAULT_ROOT and not root.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: give a folder of runs, or none for {DEFAULT_ROOT}/.")
    known = {state.replace(" ", "-"): state for state in STATES}
    names = [name.strip().replace(" ", "-") for name in state_text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ValueError(f"--state {name} is not a state: choose from {', '.join(known)}.")
    return Selection(root, filter_text.split(), tuple(known[name] for name in names))


def _since(run: DiscoveredRun, facts: dict[str, Any]) -> float:
    if "started" in facts:
        return facts["started"]
    with contextlib.suppress(OSError):
        return run.folder.config.stat().st_mtime
    return 0.0

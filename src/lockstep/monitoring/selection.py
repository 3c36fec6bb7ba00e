"""The runs that a command shows: those below a folder that match the given terms and states."""

import contextlib
import math
import operator
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from lockstep.monitoring import cells
from lockstep.runs.discovery import STATES, DiscoveredRun, Watched, modified_ns
from lockstep.runs.files import read_text
from lockstep.runs.naming import display_path
from lockstep.system.redaction import redact

DEFAULT_ROOT = "outputs"
COLUMNS = ("state", "run", "best", "settings", "epoch", "s/epoch", "started")
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
        """Return a fact, a metric or a setting by its key, None if the run has none. Settings are texts."""
        if key in self.known or key in USUAL:
            return self.known.get(key)
        # parsing takes milliseconds
        return self.settings.get(key) if f"\n{key.partition('.')[0]}:" in f"\n{self._config}" else None

    @cached_property
    def known(self) -> dict[str, Any]:
        """The values that need no configuration."""
        typed = dict(text.lstrip("+").split("=", 1) for text in self.facts["overrides"] if "=" in text)
        facts = typed | self.facts["metrics"] | self.facts | {"started": self.since or None}
        return facts | {name: facts[fact] for name, fact in OTHER_NAMES.items() if fact in facts}

    def comparable(self, key: str) -> list[Any]:
        """Return the values of a key to compare: all tags, the start as text, none for a run without the key."""
        found = self.value(key)
        if isinstance(found, list):
            return found
        return [] if found is None else [cells.moment(found) if key == "started" else found]

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the configuration, without secrets; empty if it cannot be read."""
        return _settings(self._config)

    @cached_property
    def _config(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            return read_text(self.discovered.folder.config)
        return ""


@lru_cache(maxsize=1000)
def _settings(text: str) -> dict[str, str]:
    from yaml import YAMLError  # which a listing without settings does not need

    from lockstep.system.trees import from_yaml, leaves

    try:
        tree = from_yaml(text)
    except (ValueError, YAMLError):
        return {}
    return {key: cells.setting(redact(value, key)) for key, value in leaves(tree, "") if value not in (None, {})}


def order(value: Any) -> tuple[bool, float, str]:
    """Return the key by which values are compared: numbers first, texts without case and with - for blanks."""
    with contextlib.suppress(TypeError, ValueError):
        if math.isfinite(number := float(value)):
            return False, number, ""
    return True, 0.0, str(value).casefold().replace(" ", "-")


@dataclass(frozen=True)
class Selection:
    """The root of the search, the terms that must all match, and the states, of which none means all.

    For a removal, SETTING=VALUE is only a text: a setting that nobody typed does not match, nor does a note.
    """

    root: Path
    terms: Sequence[str]
    states: Sequence[str]
    is_removal: bool = False

    def matching_runs(self, watched: Watched) -> list[Listed]:
        """List them, the newest first."""
        return [run for run in all_runs(watched) if self.matches(run)]

    def check(self, runs: Collection[Listed], *keys: str) -> None:
        """Raise ValueError for one of these keys, or a condition, that fits no run."""
        for key in keys:
            self._check_key(runs, key)
        for term, condition in zip(self.terms, map(CONDITION.fullmatch, self.terms), strict=True):
            if condition is None or (found := condition.groups())[1] == "=":  # with = it may be any text
                continue
            key, sign, wanted = found
            if not wanted and sign != "!=":
                raise ValueError(f"{term} is incomplete: write it as optimizer.lr>=0.05.")
            self._check_key(runs, key)
            values = [value for run in runs for value in run.comparable(key)]
            if sign != "!=" and order(wanted)[0] and values and not any(order(value)[0] for value in values):
                raise ValueError(f"{term} needs a number.")

    def _check_key(self, runs: Collection[Listed], key: str) -> None:
        if runs and key not in USUAL and all(run.value(key) is None for run in runs):
            known = {*USUAL, *next(iter(runs)).settings}.union(*(run.known for run in runs))
            same = sorted(name for name in known if re.split(r"[./]", name)[-1] == key)
            near = " or ".join(same or get_close_matches(key, known))
            hint = f"did you mean {near}?" if near else f"choose from {', '.join(USUAL)}, or name a setting or metric."
            raise ValueError(f"no run below {display_path(self.root)} has {key}: {hint}")

    def matches(self, run: Listed) -> bool:
        facts = run.facts
        if self.states and facts["state"] not in self.states:
            return False
        texts = [facts["run"], facts.get("name", ""), facts.get("device", ""), *facts["overrides"], facts["state"]]
        texts += [] if self.is_removal else [facts.get("note", ""), *facts.get("tags", [])]
        text = " ".join([*texts, f"state={facts['state'].replace(' ', '-')}"]).casefold()
        return all(term.casefold() in text or self._holds(term, run) for term in self.terms)

    def _holds(self, term: str, run: Listed) -> bool:
        """Compare a value, of tags any one; False for a run without the key. A number is not compared with a text."""
        if (condition := CONDITION.fullmatch(term)) is None:
            return False
        key, sign, wanted = condition.groups()
        if self.is_removal and sign == "=" and key not in NOTES:
            return False
        lefts, right = [order(value) for value in run.comparable(key)], order(wanted)
        if sign == "!=":
            return bool(lefts) and right not in lefts
        return any(left[0] == right[0] and OPERATORS[sign](left, right) for left in lefts)


def all_runs(watched: Watched) -> list[Listed]:
    """List all runs, the newest first."""
    found = [(run, watched.facts(run)) for run in watched.runs().values()]
    runs = [Listed(run, facts, facts.get("started") or modified_ns(run.folder.config) / 1e9) for run, facts in found]
    return sorted(runs, key=lambda run: (run.since, run.discovered.name), reverse=True)


def select_runs(runs: Mapping[Any, Listed], filter_text: str, where: str) -> dict[str, Any]:
    """Return the keys of the `matching` runs, or what is `wrong` with the filter; `where` names their folder."""
    chosen = Selection(Path(where), filter_text.split(), ())
    try:
        chosen.check(runs.values())
    except ValueError as error:
        return {"wrong": str(error)}
    return {"matching": [key for key, run in runs.items() if chosen.matches(run)]}


def selection(folder: str, filter_text: str, state_text: str) -> Selection:
    """Parse the arguments of a command, with states like `failed,no-signal`. Raises ValueError or FileNotFoundError."""
    root = Path(folder)
    if folder != DEFAULT_ROOT and not root.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: give a folder of runs, or none for {DEFAULT_ROOT}/.")
    known = {state.replace(" ", "-"): state for state in STATES}
    names = [name.strip().replace(" ", "-") for name in state_text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ValueError(f"--state {name} is not a state: choose from {', '.join(known)}.")
    return Selection(root, filter_text.split(), tuple(known[name] for name in names))

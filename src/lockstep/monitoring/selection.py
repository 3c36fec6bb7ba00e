"""The runs that a command shows: those below a folder that match the given terms and states."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.runs.discovery import STATES, DiscoveredRun, Watched

DEFAULT_ROOT = "outputs"


@dataclass(frozen=True)
class Listed:
    """A run and its facts; `since` is the start of its last session, or else when it was created."""

    discovered: DiscoveredRun
    facts: dict[str, Any]
    since: float


@dataclass(frozen=True)
class Selection:
    """The root of the search, the terms that must all occur, and the states, of which none means all."""

    root: Path
    terms: Sequence[str]
    states: Sequence[str]

    def listed(self, watched: Watched) -> list[Listed]:
        """List the matching runs, the newest first."""
        matching = [facts for facts in watched.look() if self._matches(facts)]
        by_id = watched.runs()  # may search again: a run may have been removed since
        discovered = [(by_id[facts["id"]], facts) for facts in matching if facts["id"] in by_id]
        runs = [Listed(run, facts, _since(run, facts)) for run, facts in discovered]
        return sorted(runs, key=lambda run: (run.since, run.discovered.name), reverse=True)

    def _matches(self, facts: dict[str, Any]) -> bool:
        if self.states and facts["state"] not in self.states:
            return False
        texts = [facts["run"], facts.get("name", ""), facts.get("device", ""), *facts["overrides"], facts["state"]]
        text = " ".join([*texts, f"state={facts['state'].replace(' ', '-')}"]).casefold()
        return all(term in text for term in self.terms)


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
    return Selection(root, filter_text.casefold().split(), tuple(known[name] for name in names))


def _since(run: DiscoveredRun, facts: dict[str, Any]) -> float:
    if "started" in facts:
        return facts["started"]
    with contextlib.suppress(OSError):
        return run.folder.config.stat().st_mtime
    return 0.0
